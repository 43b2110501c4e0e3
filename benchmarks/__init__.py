"""Ratios against peers, each measured side by side in one run: ``python -m benchmarks`` (``make bench``)."""
