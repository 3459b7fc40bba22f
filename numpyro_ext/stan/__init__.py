"""Stan programs as NumPyro programs, by BridgeStan: every engine fits them unchanged."""

from numpyro_ext.stan.compilation import ToolchainError
from numpyro_ext.stan.program import StanProgram, model

__all__ = ["StanProgram", "ToolchainError", "model"]
