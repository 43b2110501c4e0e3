"""Objects over ggml: devices, backends, contexts, buffers, tensors, operations, graphs, GGUF files."""
