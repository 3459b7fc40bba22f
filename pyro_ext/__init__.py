"""Inference engines for Pyro programs."""
