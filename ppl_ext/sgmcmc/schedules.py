"""Stochastic gradient MCMC without arrays: step sizes by step number, and checks of options.

Schedules are objects, not closures, so that kernels can be sent to other processes. They take the
number of steps as an int or as an array of either framework, traced or not.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError, DivergenceWarning, DoubtfulFitWarning
from ppl_ext.options import check_choice, check_count, check_number, described, is_number
from ppl_ext.target.on_host import as_float64

#: Step size of a step, from the number of steps before it.
Schedule: TypeAlias = Callable[[Any], Any]


def as_schedule(step_size: float | Schedule) -> Schedule:
    """A schedule from a step size or a schedule, such as one of optax.

    Raises
    ------
    ArgumentError
        It is neither a positive number nor callable.
    """
    if callable(step_size):
        try:
            inspect.signature(step_size).bind(0)
        except ValueError:  # a signature that Python does not know
            pass
        except TypeError as error:
            raise ArgumentError(
                "Expected step_size to be a number, or a function from the number of steps taken "
                f"to one, found a function of other parameters: {error}."
            ) from error
        return step_size
    check_number("step_size", step_size)
    return constant(step_size)


@dataclass(frozen=True)
class _Constant:
    value: float

    def __call__(self, step: Any) -> Any:
        return self.value


@dataclass(frozen=True)
class _PolynomialDecay:
    scale: float
    offset: float
    power: float

    def __call__(self, step: Any) -> Any:
        return self.scale * (self.offset + 1.0 + step) ** -self.power


@dataclass(frozen=True)
class _CosineCycles:
    step_size: float
    cycle_length: int
    power: float = 1.0

    def __call__(self, step: Any) -> Any:
        angle = math.pi * (step % self.cycle_length) / self.cycle_length
        # A tensor of torch without axes is a number for ``math``; a traced array is not.
        functions = angle.__array_namespace__() if hasattr(angle, "__array_namespace__") else math
        return self.step_size * (0.5 * (functions.cos(angle) + 1.0)) ** self.power


def check_first_step_size(step_size: Any) -> None:
    """See that the first step size of a schedule is one.

    Raises
    ------
    ArgumentError
        It is not.
    """
    try:
        value = float(step_size)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise ArgumentError(
            "Expected step_size to be a schedule, a function from the number of steps taken to a "
            f"finite number >= 0, found {described(step_size)} at step 0."
        )


#: What may be done about steps that are not finite.
_SMALLER = (
    "Draws repeat those before them, which may lie where values overflow: do not use them. Take a "
    "smaller step size, such as a tenth, start near the posterior (init_strategy), and look for "
    "NaN in the schedule and in the data. `diverging` in to_arviz's sample_stats says which draws."
)


def warn_of_broken_steps(kernel: str, broken: int, steps: int) -> None:
    """Say that steps were not finite and so were not taken."""
    if broken:
        warnings.warn(
            f"{broken} of {steps} steps of {kernel} were not finite and were not taken. {_SMALLER}",
            DivergenceWarning,
            stacklevel=3,
        )


def warn_of_draws_without_density(kernel: str, number: int) -> None:
    """Warn of draws whose steps were finite and began where the log density is not finite."""
    if number:
        warnings.warn(
            f"{number} draws of {kernel} come by steps that began where the density is not finite. "
            f"{_SMALLER}",
            DivergenceWarning,
            stacklevel=3,
        )


def warn_of_first_broken_step(kernel: str, step: int) -> None:
    """Say that a step was not finite, where nobody knows yet how many will be."""
    warnings.warn(
        f"Step {step} of {kernel} was not finite: it was not taken, or began where the density is "
        f"not finite; more may follow. {_SMALLER}",
        DivergenceWarning,
        stacklevel=2,
    )


def warn_of_broken_draws(kernel: str, draws: Mapping[str, np.ndarray]) -> None:
    """Say which draws, arrays whose first axis they are, have values that are not finite."""
    for name, values in draws.items():
        broken = ~np.isfinite(np.reshape(values, (len(values), -1))).all(1)
        if broken.any():
            warnings.warn(
                f"{broken.sum()} of {len(values)} draws of '{name}' by {kernel} are not finite: "
                "the chain has run off to where values overflow. Take a smaller step size, such as "
                "a tenth, and start near the posterior (init_strategy).",
                DoubtfulFitWarning,
                stacklevel=3,
            )
            return


def constant(step_size: float) -> Schedule:
    """The same step size at every step."""
    return _Constant(float(step_size))


def polynomial_decay(scale: float, offset: float = 1.0, power: float = 0.55) -> Schedule:
    """Step sizes a (b + t)^-γ at t = 1, 2, ..., which fall to zero.

    For 1/2 < γ <= 1 their sum is infinite, so that the chain gets anywhere, and the sum of their
    squares is finite, so that the bias vanishes (Welling and Teh 2011, equation 2). Weight the
    draws by their step sizes, which the state and the diagnostics of ``MCMC`` have.

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

    Examples
    --------
    A schedule is a function of the number of steps before.

    >>> schedule = polynomial_decay(0.1)
    >>> [round(float(schedule(before)), 4) for before in (0, 9, 99)]
    [0.0683, 0.0267, 0.0079]
    """
    check_number("scale", scale)
    if offset:
        check_number("offset", offset)
    check_number("power", power, 0.5, most=1.0)
    return _PolynomialDecay(float(scale), float(offset), float(power))


def cosine_cycles(step_size: float, cycle_length: int, power: float = 1.0) -> Schedule:
    """Step sizes that fall from ``step_size`` to nearly zero along a cosine, in every cycle.

    At step t = 1, 2, ... of cycles of L steps

        α_t = α_0 (cos(π mod(t - 1, L) / L) / 2 + 1 / 2)^p.

    Parameters
    ----------
    step_size : float
        α_0, that of the first step of a cycle.
    cycle_length : int
        L, in steps.
    power : float
        p. With p = 1/2 the squares of the step sizes fall along the cosine, as they should where
        a step size is a time (:class:`~ppl_ext.sgmcmc.kernels.SGHMCShell`).

    Raises
    ------
    ArgumentError
        The step size or the power is not positive, or the length not a positive integer.

    References
    ----------
    R. Zhang et al., "Cyclical stochastic gradient MCMC for Bayesian deep learning", ICLR 2020,
    https://arxiv.org/abs/1902.03932, equation 1.

    Examples
    --------
    A schedule is a function of the number of steps before.

    >>> schedule = cosine_cycles(0.1, 50)
    >>> [round(float(schedule(before)), 4) for before in (0, 25, 50)]
    [0.1, 0.05, 0.1]
    """
    check_number("step_size", step_size)
    check_count("cycle_length", cycle_length)
    check_number("power", power)
    return _CosineCycles(float(step_size), int(cycle_length), float(power))


def check_cycles(
    step_size: Any, cycle_length: Any, exploration: Any, exploration_temperature: Any
) -> None:
    """See that the options of a sampler in cycles are in range.

    Raises
    ------
    ArgumentError
        They are not.
    """
    if callable(step_size):
        raise ArgumentError(
            "Expected step_size to be the largest step size of a cycle, found a schedule, which "
            "the cycles give already."
        )
    check_count("cycle_length", cycle_length)
    if not is_number(exploration) or not 0.0 <= float(exploration) < 1.0:
        raise ArgumentError(f"Expected 0 <= exploration < 1, found {exploration!r}.")
    heat = exploration_temperature
    if not is_number(heat) or not 0.0 <= float(heat) < math.inf:
        raise ArgumentError(f"Expected exploration_temperature >= 0, found {heat!r}.")


def check_temperatures(temperatures: Any) -> tuple[float, ...]:
    """Temperatures of replicas as numbers.

    Raises
    ------
    ArgumentError
        They do not rise from 1, or there is one alone.
    """
    try:
        found = tuple(float(each) for each in temperatures)
    except (TypeError, ValueError):
        found = ()
    rises = all(low < high < math.inf for low, high in itertools.pairwise(found))
    if len(found) < 2 or found[0] != 1.0 or not rises:
        raise ArgumentError(
            "Expected temperatures to be two numbers or more that rise from 1, such as "
            f"(1.0, 2.0, 4.0, 8.0), found {temperatures!r}."
        )
    return found


#: When a preconditioner adapts.
ADAPT = ("warmup", "always")


def check_preconditioner(decay: Any, damping: Any, adapt: Any) -> None:
    """See that the options of a preconditioner of running squares are in range.

    Raises
    ------
    ArgumentError
        They are not.
    """
    check_number("decay", decay)
    if float(decay) >= 1.0:
        raise ArgumentError(f"Expected decay < 1, found {decay!r}.")
    check_number("damping", damping)
    check_choice("adapt", adapt, ADAPT)


def check_warmup(adapt: str, name: str, number: int) -> None:
    """See that there is a warm-up where a preconditioner adapts in it alone.

    Parameters
    ----------
    adapt : {"warmup", "always"}
    name : str
        The host's name of the option.
    number : int
        Draws of the warm-up.

    Raises
    ------
    ArgumentError
        There is none.
    """
    if adapt == "warmup" and number < 1:
        raise ArgumentError(
            f"Expected a warm-up, in which PSGLD finds its preconditioner, found {name}=0. Take "
            f"{name} of some hundred, or adapt='always'."
        )


def diagonal_of_mass(mass: Any, shapes: Mapping[str, Sequence[int]]) -> Float[np.ndarray, " D"]:
    """The diagonal of the mass of momenta, from one number, D of them or numbers by site.

    Parameters
    ----------
    mass : float, array (D,) or mapping of str to array
    shapes : mapping of str to shape
        Of the sites in unconstrained space, in flat order.

    Raises
    ------
    ArgumentError
        The mass has another shape, or is not positive.
    """
    dim = sum(math.prod(shape) for shape in shapes.values())
    if isinstance(mass, Mapping):
        if set(mass) != set(shapes):
            raise ArgumentError(
                f"Expected mass for the latent sites {list(shapes)}, found {sorted(mass)}."
            )
        mass = np.concatenate([_mass_of_site(name, mass[name], shapes[name]) for name in shapes])
    try:
        mass = as_float64(mass)
    except (TypeError, ValueError):
        raise ArgumentError(f"Expected mass to hold numbers, found {mass!r}.") from None
    if mass.shape not in ((), (dim,)) or not (np.isfinite(mass) & (mass > 0)).all():
        raise ArgumentError(
            f"Expected mass to be positive: one number, {dim} of them, or a mapping from sites to "
            f"arrays, found {'shape ' + str(mass.shape)}."
        )
    return np.broadcast_to(mass, (dim,)).copy()


def _mass_of_site(name: str, mass: Any, shape: Sequence[int]) -> np.ndarray:
    try:
        return np.broadcast_to(as_float64(mass), tuple(shape)).reshape(-1)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"Expected mass of site {name!r} to be numbers of shape {tuple(shape)}, or one for "
            f"all, found {mass!r}."
        ) from None
