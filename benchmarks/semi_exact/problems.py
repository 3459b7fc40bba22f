"""Targets with draws that are exact or those of posteriordb's reference.

Each is a program without arguments in either package, with a flat unconstrained vector of D
numbers. Everything is judged there, and eight schools' effects as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.targets import Target, make_targets
from benchmarks.posteriordb.database import Database

Floats = NDArray[np.float64]

#: Dimensions for each particle.
RATIOS = (0.05, 0.25, 0.5, 0.75, 0.95)
PARTICLES = 100
#: Exact draws that runs are held against.
DRAWS = 40_000
#: Correlation of neighbouring coordinates, and condition number of the ill-conditioned Normals.
CORRELATION, CONDITION = 0.76, 1000.0
#: Posteriors that are near to Normal, and have few rows.
POSTERIORS = ("kidiq_with_mom_work-kidscore_mom_work", "arK-arK", "mesquite-logmesquite")
EIGHT_SCHOOLS = "eight_schools-eight_schools_noncentered"
#: On eight schools also with these: the number of the README, and that of an engine by itself.
FEWER = (64, 32)


@dataclass(frozen=True)
class Problem:
    """One target with a number of particles.

    Attributes
    ----------
    name : str
    group : str
        "Normal", "posteriordb" or "shaped".
    family : str
        Name of the target without its number of dimensions or particles.
    dim, particles : int
        D and P.
    ratio : float, optional
        D / P, as it is meant; None of shaped targets.
    program : callable
        From a backend's module of fits to its program.
    reference : callable
        From the program to draws (S, D).
    moments : tuple, optional
        Exact mean (D,) and covariance (D, D); else the draws have them.
    further : bool
        Whether parameters beside the coordinates are judged by their marginals.
    """

    name: str
    group: str
    family: str
    dim: int
    particles: int
    program: Callable[[Any], Any]
    reference: Callable[[Any], Floats]
    ratio: float | None = None
    moments: tuple[Floats, Floats] | None = field(default=None, repr=False)
    further: bool = False


def normal_covariance(family: str, dim: int) -> Floats:
    """Covariance (D, D) of a Normal of a family."""
    generator = np.random.default_rng(dim)
    if family == "independent":
        return np.eye(dim)
    if family == "correlated":
        scales = np.exp(0.5 * generator.normal(size=dim))
        lags = np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))
        found: Floats = np.outer(scales, scales) * CORRELATION**lags
        return found
    rotation = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    values = np.geomspace(CONDITION**-0.5, CONDITION**0.5, dim)
    return (rotation * values) @ rotation.T


def _normal_log_density(xp: Any, z: Any, c: Any) -> Any:
    return -0.5 * (z @ (c["precision"] @ z))


def _of_target(target: Target, fits: Any) -> Any:
    return fits.flat(target)


def normal(family: str, dim: int, particles: int = PARTICLES) -> Problem:
    """A Normal of a family."""
    covariance = normal_covariance(family, dim)
    precision: Floats = np.asarray(np.linalg.inv(covariance), np.float64)
    target = Target(family, dim, _normal_log_density, {"precision": precision})

    def draws(_: Any) -> Floats:
        noise = np.random.default_rng([dim, 1]).normal(size=(DRAWS, dim))
        return noise @ np.linalg.cholesky(covariance).T

    return Problem(
        f"Normal, {family}, D = {dim}" + (f", P = {particles}" if particles != PARTICLES else ""),
        "Normal",
        f"Normal, {family}",
        dim,
        particles,
        partial(_of_target, target),
        draws,
        dim / particles,
        (np.zeros(dim), covariance),
    )


def _native(model_name: str, data: Any, fits: Any) -> Any:
    return fits.native(model_name, data)


def _reference_of(posterior: Any, program: Any) -> Floats:
    draws = posterior.reference_draws()
    pooled = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
    found: Floats = program.positions(pooled)
    return found


def posteriors(database: Database) -> Iterator[Problem]:
    """The near-Gaussian posteriors that a database has, with each number of particles."""
    for name in POSTERIORS:
        if name not in database:
            continue
        posterior = database[name]
        dim = sum(posterior.dimensions.values())
        short = posterior.model_name
        for ratio in RATIOS:
            particles = math.ceil(dim / ratio)
            yield Problem(
                f"{short}, P = {particles}",
                "posteriordb",
                short,
                dim,
                particles,
                partial(_native, posterior.model_name, posterior.data()),
                partial(_reference_of, posterior),
                ratio,
            )


def shaped_draws(name: str, target: Target) -> Floats:
    """Exact draws (S, D) of a shaped target."""
    generator = np.random.default_rng(2)
    noise = generator.normal(size=(DRAWS, target.dim))
    if name == "banana":
        return np.stack([noise[:, 0], 0.5 * noise[:, 0] ** 2 + 0.5 * noise[:, 1]], 1)
    if name == "two modes":
        right = generator.random(DRAWS) < 0.7
        return noise + np.where(right, 2.5, -2.5)[:, None] * np.array([1.0, 0.0])
    if name == "funnel":
        return noise * np.exp(0.5 * np.c_[np.zeros(DRAWS), *[noise[:, 0]] * (target.dim - 1)])
    if name == "Student t, D = 5":
        return noise / np.sqrt(generator.chisquare(5, size=(DRAWS, 1)) / 5.0)
    if name == "log-gamma, D = 30":
        logs: Floats = np.log(generator.gamma(2.0, size=(DRAWS, target.dim)))
        return logs @ target.constants["rotation"]
    raise KeyError(name)


def _exact(name: str, target: Target, program: Any) -> Floats:
    return shaped_draws(name, target)


SHAPED = ("banana", "two modes", "funnel", "Student t, D = 5", "log-gamma, D = 30")


def shaped(database: Database) -> Iterator[Problem]:
    """Targets that are far from Normal."""
    targets = make_targets()
    for name in SHAPED:
        target = targets[name]
        yield Problem(
            name,
            "shaped",
            name,
            target.dim,
            PARTICLES,
            partial(_of_target, target),
            partial(_exact, name, target),
            moments=target.moments,
        )
    if EIGHT_SCHOOLS in database:
        posterior = database[EIGHT_SCHOOLS]
        for number in (PARTICLES, *FEWER):
            yield Problem(
                "eight schools" if number == PARTICLES else f"eight schools, P = {number}",
                "shaped",
                "eight schools",
                sum(posterior.dimensions.values()),
                number,
                partial(_native, posterior.model_name, posterior.data()),
                partial(_reference_of, posterior),
                further=True,
            )


#: Dimensions of the Normals by family, and dimensions and particles of those with few.
FEW = (50, 25)
NORMALS = {
    "independent": (5, 50),
    "correlated": (5, 25, 50, 75, 95),
    "ill-conditioned": (5, 50),
}


def make_problems(database: Database) -> list[Problem]:
    """All problems."""
    normals = [normal(family, dim) for family, dims in NORMALS.items() for dim in dims]
    # Fewer particles than dimensions.
    normals += [normal(family, *FEW) for family in NORMALS]
    return [*normals, *posteriors(database), *shaped(database)]
