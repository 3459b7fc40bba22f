"""Statistics of draws: R-hat, effective numbers, and k-hat of importance ratios.

Their oracle is ArviZ.
"""
