"""Worked examples, one script each; run as python -m examples.<host>_examples.<name>."""
