"""From a start by corrected draws to chains that agree."""
