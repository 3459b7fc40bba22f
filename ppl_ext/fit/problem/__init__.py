"""What a fit asks of a program, and what a package answers."""
