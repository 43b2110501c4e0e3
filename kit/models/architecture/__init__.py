"""The network: what a file says of it, its tensors, its graph, the names of its stages."""
