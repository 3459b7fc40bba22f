"""What is asked of a program's flat log density: its structure, its checks, its fingerprint."""
