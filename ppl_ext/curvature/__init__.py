"""Curvature of programs: which is computed, Fisher information, outer products."""
