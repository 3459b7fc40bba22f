"""Statistics of draws: effective numbers, tails of importance ratios. Their oracle is ArviZ."""
