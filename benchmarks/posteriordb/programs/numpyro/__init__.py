"""Native programs in NumPyro."""
