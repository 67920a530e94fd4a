"""Benchmarks, each run as ``python -m benchmarks.NAME``; they compare within one run and write records."""
