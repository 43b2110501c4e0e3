"""Checkpoints of other formats to GGUF."""
