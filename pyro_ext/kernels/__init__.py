"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from pyro_ext.kernels.bandwidth import BANDWIDTH_RULES, Bandwidth, bandwidth
from pyro_ext.kernels.base import Interactions, Kernel, KernelState
from pyro_ext.kernels.combination import Scaled, Sum, mixture
from pyro_ext.kernels.default import ByNumber, default_kernel
from pyro_ext.kernels.graphical import Graphical
from pyro_ext.kernels.host import HostKernel, as_kernel
from pyro_ext.kernels.imq import IMQ
from pyro_ext.kernels.linear import Linear
from pyro_ext.kernels.metric import METRICS, Metric, ProductMetric
from pyro_ext.kernels.preconditioned import Preconditioned
from pyro_ext.kernels.random_feature import RandomFeature
from pyro_ext.kernels.rbf import RBF

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
