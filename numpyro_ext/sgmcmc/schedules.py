"""Step sizes by step number, for kernels whose ``step_size`` is a function.

They are objects, not closures, so that kernels can be sent to other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from ppl_ext.options import check_count, check_number

#: Step size of a step, from the number of steps before it (an int array without axes).
Schedule: TypeAlias = Callable[[Array], Array]


def as_schedule(step_size: float | Schedule) -> Schedule:
    """A schedule from a step size or a schedule, such as one of optax.

    Raises
    ------
    ArgumentError
        It is neither a positive number nor callable.
    """
    if callable(step_size):
        return step_size
    check_number("step_size", step_size)
    return constant(step_size)


@dataclass(frozen=True)
class _Constant:
    value: float

    def __call__(self, step: Array) -> Array:
        return jnp.asarray(self.value)


@dataclass(frozen=True)
class _PolynomialDecay:
    scale: float
    offset: float
    power: float

    def __call__(self, step: Array) -> Array:
        return self.scale * (self.offset + 1.0 + step) ** -self.power


@dataclass(frozen=True)
class _CosineCycles:
    step_size: float
    cycle_length: int

    def __call__(self, step: Array) -> Array:
        angle = jnp.pi * (step % self.cycle_length) / self.cycle_length
        return 0.5 * self.step_size * (jnp.cos(angle) + 1.0)


def constant(step_size: float) -> Schedule:
    """The same step size at every step."""
    return _Constant(float(step_size))


def polynomial_decay(scale: float, offset: float = 1.0, power: float = 0.55) -> Schedule:
    """Step sizes a (b + t)^-γ at t = 1, 2, ..., which fall to zero.

    For 1/2 < γ <= 1 their sum is infinite, so that the chain gets anywhere, and the sum of their
    squares is finite, so that the bias vanishes (Welling and Teh 2011, equation 2). Weight the
    draws by their step sizes, the field ``step_size`` of the state.

    Parameters
    ----------
    scale : float
        a, positive.
    offset : float
        b, not negative.
    power : float
        γ.

    Raises
    ------
    ArgumentError
        A parameter is out of its range.
    """
    check_number("scale", scale)
    if offset:
        check_number("offset", offset)
    check_number("power", power, 0.5, most=1.0)
    return _PolynomialDecay(float(scale), float(offset), float(power))


def cosine_cycles(step_size: float, cycle_length: int) -> Schedule:
    """Step sizes that fall from ``step_size`` to nearly zero along a cosine, in every cycle.

    At step t = 1, 2, ... of cycles of L steps

        α_t = α_0 / 2 (cos(π mod(t - 1, L) / L) + 1).

    Parameters
    ----------
    step_size : float
        α_0, that of the first step of a cycle.
    cycle_length : int
        L, in steps.

    Raises
    ------
    ArgumentError
        The step size is not positive, or the length not a positive integer.

    References
    ----------
    R. Zhang et al., "Cyclical stochastic gradient MCMC for Bayesian deep learning", ICLR 2020,
    equation 1.
    """
    check_number("step_size", step_size)
    check_count("cycle_length", cycle_length)
    return _CosineCycles(float(step_size), int(cycle_length))


__all__ = ["Schedule", "as_schedule", "constant", "cosine_cycles", "polynomial_decay"]
