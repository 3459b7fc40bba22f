"""Native programs in Pyro."""
