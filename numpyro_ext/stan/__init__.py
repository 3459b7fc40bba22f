"""Stan programs as NumPyro programs, by BridgeStan: every engine fits them unchanged."""

from numpyro_ext.stan.program import StanProgram, model
from ppl_ext.stan.compilation import ToolchainError

__all__ = ["StanProgram", "ToolchainError", "model"]
