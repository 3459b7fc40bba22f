"""Figures and plots of predictions, and ArviZ objects from arrays."""
