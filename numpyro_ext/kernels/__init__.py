"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from numpyro_ext.kernels.bandwidth import BANDWIDTH_RULES, Bandwidth, bandwidth
from numpyro_ext.kernels.base import Kernel, KernelState
from numpyro_ext.kernels.combination import Scaled, Sum
from numpyro_ext.kernels.host import HostKernel, as_kernel
from numpyro_ext.kernels.imq import IMQ
from numpyro_ext.kernels.linear import Linear
from numpyro_ext.kernels.rbf import RBF

__all__ = [
    "BANDWIDTH_RULES",
    "IMQ",
    "RBF",
    "Bandwidth",
    "HostKernel",
    "Kernel",
    "KernelState",
    "Linear",
    "Scaled",
    "Sum",
    "as_kernel",
    "bandwidth",
]
