"""What guides need that knows no framework: layouts of the flat vector, checks, the registry."""
