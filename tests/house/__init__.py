"""Figures of the house: how much code there is, how deep it is and where it says a thing twice."""
