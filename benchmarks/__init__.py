"""Measurements, each run as ``python -m benchmarks.NAME``; ratios within one run, written as records."""
