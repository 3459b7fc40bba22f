"""Stein engines without arrays: the options and the choice of solver of Newton's steps."""
