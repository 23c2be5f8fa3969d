"""Benchmarks: how fast the package is beside its peers, in ratios taken within one run; `python -m benchmarks`."""
