"""Builds of ggml for this machine: made from the registry's source, listed, chosen, removed."""
