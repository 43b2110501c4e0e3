"""Weights: mapped or read from their files, and what is made of them for speed."""
