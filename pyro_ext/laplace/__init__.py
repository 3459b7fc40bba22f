"""Laplace approximations with Gauss-Newton curvature (``LaplaceGGN``)."""

from pyro_ext.laplace.gaussian import Precision, precision_of
from pyro_ext.laplace.laplace_ggn import LaplaceGGN

__all__ = ["LaplaceGGN", "Precision", "precision_of"]
