"""Score estimators without arrays: what they are, their options and checks."""
