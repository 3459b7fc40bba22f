"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from numpyro_ext.kernels.bandwidth import BANDWIDTH_RULES, Bandwidth, bandwidth
from numpyro_ext.kernels.base import Interactions, Kernel, KernelState
from numpyro_ext.kernels.combination import Scaled, Sum, mixture
from numpyro_ext.kernels.default import ByNumber, default_kernel
from numpyro_ext.kernels.graphical import Graphical
from numpyro_ext.kernels.host import HostKernel, as_kernel
from numpyro_ext.kernels.imq import IMQ
from numpyro_ext.kernels.linear import Linear
from numpyro_ext.kernels.metric import METRICS, Metric, ProductMetric
from numpyro_ext.kernels.preconditioned import Preconditioned
from numpyro_ext.kernels.random_feature import RandomFeature
from numpyro_ext.kernels.rbf import RBF

__all__ = [
    "ByNumber",
    "BANDWIDTH_RULES",
    "IMQ",
    "METRICS",
    "RBF",
    "Bandwidth",
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
    "Sum",
    "as_kernel",
    "bandwidth",
    "default_kernel",
    "mixture",
]
