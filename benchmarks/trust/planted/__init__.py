"""Families of planted problems; :mod:`benchmarks.trust.pathologies` has them all."""
