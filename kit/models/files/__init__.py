"""Where model files are found and fetched."""
