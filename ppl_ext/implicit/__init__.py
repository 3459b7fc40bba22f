"""Guides that can be drawn from and have no density, without arrays of a framework."""
