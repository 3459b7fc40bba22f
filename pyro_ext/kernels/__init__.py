"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from ppl_ext.kernels import BANDWIDTH_RULES, METRICS, ProductMetric
from pyro_ext.kernels.bandwidth import Bandwidth, bandwidth
from pyro_ext.kernels.base import Interactions, Kernel, KernelState, Scaled, Sum, mixture
from pyro_ext.kernels.default import ByParticleCount, default_kernel
from pyro_ext.kernels.graphical import Graphical
from pyro_ext.kernels.host import HostKernel, as_kernel
from pyro_ext.kernels.imq import IMQ
from pyro_ext.kernels.linear import Linear
from pyro_ext.kernels.metric import Metric
from pyro_ext.kernels.preconditioned import Preconditioned
from pyro_ext.kernels.random_feature import RandomFeature
from pyro_ext.kernels.rbf import RBF

__all__ = [
    "ByParticleCount",
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
