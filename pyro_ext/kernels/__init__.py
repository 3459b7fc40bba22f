"""Stein kernels: one written bandwidth definition, named alternatives, and the host's kernels."""

from pyro_ext.kernels.bandwidth import BANDWIDTH_RULES, Bandwidth, bandwidth
from pyro_ext.kernels.base import Kernel, KernelState
from pyro_ext.kernels.combination import Scaled, Sum
from pyro_ext.kernels.host import HostKernel, as_kernel
from pyro_ext.kernels.imq import IMQ
from pyro_ext.kernels.linear import Linear
from pyro_ext.kernels.rbf import RBF

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
