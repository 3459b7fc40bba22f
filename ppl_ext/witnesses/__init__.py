"""Witnesses on draws: importance ratios, Stein's identities, drift, untouched sites."""
