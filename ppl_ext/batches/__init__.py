"""Rows from iterators: what a run and a sweep ask of a loader, without a framework."""
