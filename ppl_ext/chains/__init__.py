"""Many short chains side by side that start from a fit's draws, and what they tell."""
