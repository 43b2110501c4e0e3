"""The KV cache: cells, sequences, shifting, and its form on disk."""
