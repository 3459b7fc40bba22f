"""Compiled programs that others find again: a room that knows nothing of models."""

from numpyro_ext.programs.program import Loop, Program, concretely

__all__ = ["Loop", "Program", "concretely"]
