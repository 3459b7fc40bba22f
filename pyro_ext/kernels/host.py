"""Pyro's own Stein kernels as kernels of this package.

``pyro.infer.svgd.SteinKernel.log_kernel_and_grad`` gives, for particles (P, D), two tensors of
shape (P, P, D): log k_d(x_n, x_m) and a gradient. The gradient is documented as that with
respect to x_m, but both kernels that Pyro ships return the one with respect to x_n, and Pyro's
driver subtracts it as such; a kernel that followed the documentation would attract its particles
there. This adapter follows what Pyro does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from pyro.infer.svgd import SteinKernel
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.base import KernelState
from pyro_ext.kernels.classes import Kernel, default_kernel

_MODES = ("univariate", "multivariate")


@dataclass(frozen=True, eq=False, repr=False)
class HostKernel(Kernel):
    """A Pyro ``SteinKernel``.

    Parameters
    ----------
    kernel : pyro.infer.svgd.SteinKernel
        The host's kernel. It makes tensors of shape (P, P, D).
    mode : "univariate" or "multivariate", default "univariate"
        As in ``pyro.infer.SVGD``: one kernel for each coordinate, applied to that
        coordinate's scores, or their product as one kernel. The first loses correlation
        between coordinates and the second vanishes in more than a few of them; prefer the
        kernels of this package.

    Raises
    ------
    ArgumentError
        If the kernel is no ``SteinKernel`` or the mode is unknown.
    """

    kernel: SteinKernel
    mode: str = "univariate"

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, SteinKernel):
            raise ArgumentError(
                f"Expected a pyro.infer.svgd.SteinKernel, found {type(self.kernel).__name__}."
            )
        if self.mode not in _MODES:
            raise ArgumentError(f"Expected a mode among {_MODES}, found {self.mode!r}.")

    def _values_and_slopes(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        """Kernel values and their gradients with respect to x_n, at (n, m, d)."""
        num, dim = particles.shape
        if num == 1:
            # A median over no pairs is an error in the host's kernels.
            ones = particles.new_ones(1, 1, dim)
            return ones, torch.zeros_like(ones)
        log_kernel, slopes = self.kernel.log_kernel_and_grad(particles)
        # With half of a coordinate's pairs equal the host's bandwidth is zero. Pairs that
        # agree then give 0 / 0, where the limit is k = 1 and no slope; the others give a
        # kernel of zero times an infinite slope, where the limit is zero.
        equal = particles.unsqueeze(0) == particles.unsqueeze(1)
        log_kernel = log_kernel.masked_fill(equal & log_kernel.isnan(), 0.0)
        slopes = slopes.masked_fill(equal & slopes.isnan(), 0.0)
        if self.mode == "multivariate":
            log_kernel = log_kernel.sum(dim=-1, keepdim=True)
        values = log_kernel.exp()
        return values, (values * slopes).masked_fill(values == 0, 0.0)

    def direction(
        self, state: KernelState, particles: Float[Tensor, "P D"], scores: Float[Tensor, "P D"]
    ) -> tuple[Float[Tensor, "P D"], KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        values, slopes = self._values_and_slopes(particles)
        # The kernel is a function of x_n - x_m, so grad_{x_m} k = -grad_{x_n} k.
        return (values * scores - slopes).mean(dim=1), state

    def gram(self, state: KernelState, particles: Float[Tensor, "P D"]) -> Float[Tensor, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P).

        Raises
        ------
        ArgumentError
            In the mode "univariate" with more than one coordinate, which has a kernel for
            each.
        """
        values, _ = self._values_and_slopes(particles)
        if values.shape[-1] != 1:
            raise ArgumentError(
                "Expected a scalar kernel, found one kernel for each coordinate. Use "
                'HostKernel(kernel, mode="multivariate") for one Gram matrix.'
            )
        return values.squeeze(-1)


def as_kernel(kernel: Kernel | SteinKernel | None) -> Kernel:
    """A kernel of this package from what a user may pass.

    Parameters
    ----------
    kernel : Kernel, pyro.infer.svgd.SteinKernel or None
        None means :func:`~pyro_ext.kernels.default_kernel`.

    Raises
    ------
    ArgumentError
        If the object is none of these.
    """
    if kernel is None:
        return default_kernel()
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, SteinKernel):
        return HostKernel(kernel)
    raise ArgumentError(
        f"Expected a kernel of pyro_ext.kernels, a pyro.infer.svgd.SteinKernel, or None, found "
        f"{type(kernel).__name__}. Pass an instance, for example RBF(), not a class."
    )
