"""Microcanonical Langevin dynamics without a framework: the moves, and how a warm-up tunes them."""
