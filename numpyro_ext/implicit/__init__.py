"""Guides that can be drawn from and have no density."""

from numpyro_ext.implicit.engine import SteinDiscrepancyVI
from ppl_ext.implicit.samplers import PushForward, SemiImplicit, UnrolledSGLD

__all__ = ["PushForward", "SemiImplicit", "SteinDiscrepancyVI", "UnrolledSGLD"]
