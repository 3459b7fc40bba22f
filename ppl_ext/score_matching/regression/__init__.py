"""Closed forms of the proximal step: the methods, and the numbers that they were given."""
