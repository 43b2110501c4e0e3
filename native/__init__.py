"""Sources and build of the one extension, kit._native, and of the private copies of ggml."""
