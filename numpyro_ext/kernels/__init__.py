"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from numpyro_ext.kernels.classes import (
    IMQ,
    RBF,
    Additive,
    Bandwidth,
    ByParticleCount,
    Dilation,
    Graphical,
    Kernel,
    Linear,
    Metric,
    Preconditioned,
    RandomFeature,
    Scaled,
    SemiExact,
    Sum,
    bandwidth,
    default_kernel,
    hierarchical_kernel,
    mixture,
)
from numpyro_ext.kernels.host import HostKernel, as_kernel
from ppl_ext.kernels.base import Interactions, KernelState
from ppl_ext.kernels.rules import METRICS, ProductMetric

__all__ = [
    "Additive",
    "ByParticleCount",
    "IMQ",
    "METRICS",
    "RBF",
    "Bandwidth",
    "Dilation",
    "Graphical",
    "HostKernel",
    "Interactions",
    "Kernel",
    "KernelState",
    "Linear",
    "Metric",
    "Preconditioned",
    "ProductMetric",
    "RandomFeature",
    "Scaled",
    "SemiExact",
    "Sum",
    "as_kernel",
    "bandwidth",
    "default_kernel",
    "hierarchical_kernel",
    "mixture",
]
