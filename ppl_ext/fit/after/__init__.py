"""What is made of a climb that has ended: its evidence, other arguments, files, tables."""
