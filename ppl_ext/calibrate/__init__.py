"""Simulation-based calibration: whether a way to fit a model is right on the model's own data."""
