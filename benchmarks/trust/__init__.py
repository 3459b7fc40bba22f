"""Trust: is an answer right, and does the method know? Problems with exact draws, and a judge."""
