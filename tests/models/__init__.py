"""Models with known posteriors, written once per host over one set of data."""
