"""Draws of any method, judged: each witness a file, and what they say together."""
