"""Benchmarks and the demonstration, run by `python -m benchmarks NAME`; never installed."""
