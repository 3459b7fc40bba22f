"""Runs in pieces: cadence, best states, settling, saved states, places on devices."""
