"""Stein kernels, but for what works on the arrays of one framework alone."""
