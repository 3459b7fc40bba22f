"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from numpyro_ext.kernels.bandwidth import Bandwidth, bandwidth
from numpyro_ext.kernels.base import Interactions, Kernel, KernelState, Scaled, Sum, mixture
from numpyro_ext.kernels.default import ByParticleCount, default_kernel
from numpyro_ext.kernels.graphical import Graphical
from numpyro_ext.kernels.host import HostKernel, as_kernel
from numpyro_ext.kernels.imq import IMQ
from numpyro_ext.kernels.linear import Linear
from numpyro_ext.kernels.metric import Metric
from numpyro_ext.kernels.preconditioned import Preconditioned
from numpyro_ext.kernels.random_feature import RandomFeature
from numpyro_ext.kernels.rbf import RBF
from ppl_ext.kernels import BANDWIDTH_RULES, METRICS, ProductMetric

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
