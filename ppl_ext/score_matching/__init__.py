"""Fits of a guide by the scores of a program, without arrays' libraries."""
