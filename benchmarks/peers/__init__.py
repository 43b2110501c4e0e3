"""Programs that others wrote, each built or installed once into the cache: llama.cpp and transformers."""
