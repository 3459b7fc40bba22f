"""What the benchmarks of variance reduction share: methods, controls and runs with each package."""
