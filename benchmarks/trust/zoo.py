"""The tests' models of which exact draws can be had, on all rows of their data.

The models lie in `tests/models`, which is imported when one is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.trust.pathology import Draws, Exact, gaussian_draws, split
from benchmarks.trust.planted.schools import groups
from benchmarks.trust.planted.supports import lkj_factors


def _zoo() -> Any:
    return importlib.import_module("tests.models.zoo")


def zoo_program(
    name: str, backend: str
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]:
    """Model, arguments and options of a model of the tests, without minibatches."""
    models = importlib.import_module(f"tests.models.{backend}_models")
    return models.build(name), models.arguments(name), dict(_zoo().ZOO[name].full_options)


def _normal_mean(rows: Callable[[Any], Any], prior: float, weight: float = 1.0) -> Exact:
    def exact(number: int, rng: np.random.Generator) -> Draws:
        zoo = _zoo()
        mean, deviation = zoo.normal_mean_posterior(rows(zoo), prior, weight)
        return {"mu": mean + deviation * rng.normal(size=number)}

    return exact


def _gaussian(which: str, **sizes: int) -> Exact:
    def exact(number: int, rng: np.random.Generator) -> Draws:
        zoo = _zoo()
        mean, covariance = (getattr(zoo, f"GAUSSIAN_{which}_{part}") for part in PARTS)
        return split(gaussian_draws(mean, covariance, number, rng), **sizes)

    return exact


PARTS = ("MEAN", "COVARIANCE")


def _lognormal(number: int, rng: np.random.Generator) -> Draws:
    return {"x": np.exp(0.5 * rng.normal(size=number))}


def _exponential(number: int, rng: np.random.Generator) -> Draws:
    return {"x": rng.exponential(size=number)}


def _dirichlet(number: int, rng: np.random.Generator) -> Draws:
    return {"p": rng.dirichlet(_zoo().DIRICHLET_CONCENTRATION, size=number)}


def _lkj(number: int, rng: np.random.Generator) -> Draws:
    return {"L": lkj_factors(3, _zoo().LKJ_CONCENTRATION, number, rng)}


def _dependent(number: int, rng: np.random.Generator) -> Draws:
    a = np.exp(0.5 * rng.normal(size=number))
    return {"a": a, "b": a * rng.random(number)}


def _gamma_poisson(number: int, rng: np.random.Generator) -> Draws:
    counts = _zoo().counts()
    return {"rate": rng.gamma(2.0 + counts.sum(), 1.0 / (0.5 + len(counts)), size=number)}


def _nested(number: int, rng: np.random.Generator) -> Draws:
    """mu ~ N(0, 2), theta_g ~ N(mu, 1), rows ~ N(theta_g, 0.7)."""
    zoo = _zoo()
    rows = zoo.grouped_rows()
    prior = np.full((5, 5), 4.0)
    prior[1:, 1:] += np.eye(4)
    design = np.zeros((rows.size, 5))
    design[np.arange(rows.size), 1 + np.tile(np.arange(4), 6)] = 1.0
    noise = np.full(rows.size, 0.7)
    mean, covariance, _ = zoo.gaussian_posterior(
        np.zeros(5), prior, design, noise, rows.reshape(-1)
    )
    return split(gaussian_draws(mean, covariance, number, rng), mu=0, theta=4)


def _local(number: int, rng: np.random.Generator) -> Draws:
    """mu ~ N(0, 3), z_i ~ N(mu, 1), rows ~ N(z_i, 0.5)."""
    zoo = _zoo()
    rows = zoo.local_rows()
    count = len(rows)
    prior = np.full((count + 1, count + 1), 9.0)
    prior[1:, 1:] += np.eye(count)
    design = np.hstack([np.zeros((count, 1)), np.eye(count)])
    mean, covariance, _ = zoo.gaussian_posterior(
        np.zeros(count + 1), prior, design, np.full(count, 0.5), rows
    )
    return split(gaussian_draws(mean, covariance, number, rng), mu=0, z=count)


def _factor(number: int, rng: np.random.Generator) -> Draws:
    return {"z": 0.8 + rng.normal(size=number) / np.sqrt(5.0)}


def _schools(*, centred: bool) -> Exact:
    own = groups("schools", 5.0, centred=centred)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        assert own.exact is not None
        found = own.exact(number, rng)
        return {"theta_base" if name == "raw" else name: value for name, value in found.items()}

    return exact


_rows = _normal_mean(lambda zoo: zoo.normal_rows(), 3.0)

#: Exact draws by the model's name.
EXACT: dict[str, Exact] = {
    "conjugate_normal": _rows,
    "conjugate_normal_subsampled": _rows,
    "factor_in_plate": _rows,
    "deterministic": _rows,
    "scaled_observations": _normal_mean(lambda zoo: zoo.normal_rows(), 3.0, 0.25),
    "masked_observations": _normal_mean(lambda zoo: zoo.normal_rows()[zoo.normal_mask()], 3.0),
    "nested_plates_subsampled": _normal_mean(lambda zoo: zoo.crossed_rows().reshape(-1), 1.0),
    "gaussian_one_site": _gaussian("3D", z=3),
    "gaussian_two_sites": _gaussian("3D", a=2, b=0),
    "gaussian_five": _gaussian("5D", z=5),
    "lognormal": _lognormal,
    "exponential": _exponential,
    "dirichlet": _dirichlet,
    "lkj_cholesky": _lkj,
    "dependent_uniform": _dependent,
    "gamma_poisson": _gamma_poisson,
    "nested_plates": _nested,
    "local_latents": _local,
    "factor_outside_plate": _factor,
    "eight_schools_centered": _schools(centred=True),
    "eight_schools_noncentered": _schools(centred=False),
}
