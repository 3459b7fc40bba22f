"""Guides that can be drawn from and have no density."""

from ppl_ext.implicit.samplers import PushForward, SemiImplicit, UnrolledSGLD
from pyro_ext.implicit.engine import SteinDiscrepancyVI

__all__ = ["PushForward", "SemiImplicit", "SteinDiscrepancyVI", "UnrolledSGLD"]
