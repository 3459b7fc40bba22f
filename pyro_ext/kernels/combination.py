"""Sums and positive multiples of kernels, which are kernels again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.kernels.base import Interactions, Kernel, KernelState, check_kernel
from pyro_ext.kernels.metric import Frames, ProductMetric


@dataclass(frozen=True, init=False, repr=False)
class Sum(Kernel):
    """Sum of kernels, k = sum_m k_m; written ``RBF() + Linear()``.

    Parameters
    ----------
    kernels : iterable of Kernel
        Terms of the sum; sums within it are flattened.
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, kernels: Iterable[Kernel]) -> None:
        terms: list[Kernel] = []
        for kernel in kernels:
            terms.extend(kernel.kernels if isinstance(kernel, Sum) else (kernel,))
        if not terms:
            raise ArgumentError("Expected at least one kernel in a sum, found none.")
        for kernel in terms:
            check_kernel(kernel)
        object.__setattr__(self, "kernels", tuple(terms))

    def with_sites(self, sites: Mapping[str, slice]) -> Sum:
        """The sum of the terms for these sites."""
        return Sum(kernel.with_sites(sites) for kernel in self.kernels)

    def init(self, particles: Tensor) -> KernelState:
        """States of the terms, under their positions."""
        return {str(i): kernel.init(particles) for i, kernel in enumerate(self.kernels)}

    def direction(
        self, state: KernelState, particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, KernelState]:
        """Direction phi, shape (P, D): the sum of the terms' directions."""
        total, states = torch.zeros_like(particles), {}
        for i, kernel in enumerate(self.kernels):
            phi, states[str(i)] = kernel.direction(state[str(i)], particles, scores)
            total = total + phi
        return total, states

    @property
    def translation_invariant(self) -> bool:
        """Whether all terms are."""
        return all(kernel.translation_invariant for kernel in self.kernels)

    def with_curvature(self, metric: ProductMetric) -> Sum:
        """The sum of the terms with the present curvature."""
        return Sum(kernel.with_curvature(metric) for kernel in self.kernels)

    def interactions_in(self, frames: Frames) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        terms: list[Interactions] = []
        for kernel in self.kernels:
            term = kernel.interactions_in(frames)
            for i, other in enumerate(terms):
                if other.basis is term.basis:
                    coefficients = other.coefficients + term.coefficients
                    terms[i] = Interactions(other.gram + term.gram, coefficients, other.basis)
                    break
            else:
                terms.append(term)
        return Interactions(
            torch.stack([term.gram for term in terms]).sum(dim=0),
            torch.cat([term.coefficients for term in terms], dim=-1),
            torch.cat([term.basis for term in terms]),
        )

    def gram(self, state: KernelState, particles: Tensor) -> Tensor:
        """Kernel values at all pairs of particles, shape (P, P)."""
        total = particles.new_zeros(len(particles), len(particles))
        for i, kernel in enumerate(self.kernels):
            total = total + kernel.gram(state[str(i)], particles)
        return total


@dataclass(frozen=True, repr=False)
class Scaled(Kernel):
    """Positive multiple of a kernel; written ``0.5 * Linear()``.

    Parameters
    ----------
    kernel : Kernel
        Kernel to scale.
    factor : float
        Positive and finite; a negative multiple would not be positive definite.
    """

    kernel: Kernel
    factor: float

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ArgumentError(
                f"Expected a positive finite factor of a kernel, found {self.factor!r}. Only "
                "positive multiples are positive definite."
            )

    def with_sites(self, sites: Mapping[str, slice]) -> Scaled:
        """The multiple of the kernel for these sites."""
        return Scaled(self.kernel.with_sites(sites), self.factor)

    def init(self, particles: Tensor) -> KernelState:
        """State of the scaled kernel."""
        return self.kernel.init(particles)

    def direction(
        self, state: KernelState, particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, KernelState]:
        """Direction phi, shape (P, D)."""
        phi, state = self.kernel.direction(state, particles, scores)
        return self.factor * phi, state

    @property
    def translation_invariant(self) -> bool:
        """Whether the kernel is."""
        return self.kernel.translation_invariant

    def with_curvature(self, metric: ProductMetric) -> Scaled:
        """The multiple of the kernel with the present curvature."""
        return Scaled(self.kernel.with_curvature(metric), self.factor)

    def interactions_in(self, frames: Frames) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        found = self.kernel.interactions_in(frames)
        return Interactions(self.factor * found.gram, self.factor * found.coefficients, found.basis)

    def gram(self, state: KernelState, particles: Tensor) -> Tensor:
        """Kernel values at all pairs of particles, shape (P, P)."""
        return self.factor * self.kernel.gram(state, particles)


def mixture(kernels: Sequence[Kernel], weights: Sequence[float] | None = None) -> Sum:
    """Mixture of kernels, k = sum_m w_m k_m.

    Parameters
    ----------
    kernels : sequence of Kernel
        The kernels mixed.
    weights : sequence of float, optional
        Positive weights w_m, one for each kernel; scaled to sum to one. Default: all equal.

    Raises
    ------
    ArgumentError
        There is no kernel, the numbers of kernels and weights differ, or a weight is not positive
        and finite.
    """
    kernels = list(kernels) if isinstance(kernels, Iterable) else [kernels]
    weights = [1.0] * len(kernels) if weights is None else list(weights)
    if len(weights) != len(kernels):
        raise ArgumentError(
            f"Expected one weight for each of {len(kernels)} kernels, found {len(weights)}."
        )
    if not all(isinstance(weight, (int, float)) and 0 < weight < math.inf for weight in weights):
        raise ArgumentError(f"Expected positive finite weights of a mixture, found {weights}.")
    total = sum(weights)
    return Sum(
        Scaled(kernel, weight / total) for kernel, weight in zip(kernels, weights, strict=True)
    )
