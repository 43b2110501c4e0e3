"""Models: from a GGUF file to a session one can step through."""
