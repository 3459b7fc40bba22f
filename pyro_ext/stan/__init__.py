"""Stan programs as Pyro programs, by BridgeStan: every engine fits them unchanged."""

from ppl_ext.stan.compilation import ToolchainError
from pyro_ext.stan.program import StanProgram, model

__all__ = ["StanProgram", "ToolchainError", "model"]
