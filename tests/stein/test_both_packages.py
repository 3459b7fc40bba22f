"""Steps of particle engines, which draw nothing, are the same in both packages in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.stein.newton import NewtonSystem
from tests.backends import PACKAGES, backend_of, use_float64
from tests.models import zoo
from tests.stein_support import Run, optimizer

use_float64()

GENERATOR = np.random.default_rng(3)
X, Y = GENERATOR.normal(size=(12, 2)), GENERATOR.poisson(2.0, size=12).astype(float)


def annealing(t: Any) -> Any:
    return 0.5 + 0.1 * t


def program(backend: Any, name: str) -> tuple[Any, tuple[Any, ...], int]:
    """Model, its arguments, and the number of dimensions."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def network(x: Any, y: Any) -> None:
        """One layer with a site of each kind of block."""
        w = host.sample("w", dist.Normal(xp.zeros((2, 3)), 1.0).to_event(2))
        v = host.sample("v", dist.Normal(xp.zeros(3), 2.0).to_event(1))
        with host.plate("N", 12, subsample_size=4) as i:
            host.sample("y", dist.Poisson(xp.exp(xp.tanh(x[i] @ w) @ v)), obs=y[i])

    if name == "network":
        return network, backend.arrays((X, Y)), 9
    dim = sum(int(np.prod(shape)) for shape in zoo.ZOO[name].latents.values())
    return backend.models.build(name), backend.models.arguments(name), dim


def sgd(backend: Any) -> Any:
    return optimizer(backend, "sgd", 1e-3)


def adam(backend: Any) -> Any:
    return backend.adam(0.05)


Options = Callable[[Any], dict[str, Any]]
#: Engine, model, optimizer, number of particles, further options, and the rounding allowed.
CASES: dict[str, tuple[str, str, Any, int, Options, float]] = {
    "SVGD": (
        "SVGD",
        "logistic_regression",
        adam,
        8,
        lambda public: {"annealing": annealing, "likelihood_temperature": 2.0},
        1e-9,
    ),
    "SVGD, SGD": (
        "SVGD",
        "dependent_uniform",
        sgd,
        8,
        lambda public: {"annealing": annealing, "likelihood_temperature": 2.0},
        1e-9,
    ),
    "SVGD, sum": (
        "SVGD",
        "nested_plates",
        adam,
        8,
        lambda public: {"kernel": public.RBF() + 0.5 * public.Linear()},
        1e-9,
    ),
    "DeepEnsemble": ("DeepEnsemble", "logistic_regression", adam, 8, lambda public: {}, 1e-9),
    "WGD": (
        "WGD",
        "logistic_regression",
        sgd,
        6,
        lambda public: {
            "kernel": 0.5 * public.RBF(3.0) + public.IMQ("dimension", metric="variance")
        },
        1e-9,
    ),
    "SVN": ("SVN", "logistic_regression", None, 6, lambda public: {}, 1e-7),
    "SVN, by block": (
        "SVN",
        "gamma_poisson",
        None,
        6,
        lambda public: {
            "system": NewtonSystem("block_diagonal", solver="dense"),
            "step_size": 0.3,
        },
        1e-7,
    ),
    "SVN, diagonal": (
        "SVN",
        "nested_plates",
        None,
        6,
        lambda public: {
            "curvature": "diag",
            "likelihood_temperature": 2.0,
            "system": NewtonSystem(solver="cg"),
        },
        1e-7,
    ),
    "SVN, Kronecker": (
        "SVN",
        "network",
        None,
        6,
        lambda public: {
            "curvature": GaussNewton("kfac", every=2),
            "system": NewtonSystem(repulsion="all"),
            "damping": 10.0,
            # All rows of a model that subsamples them, in chunks of two sizes.
            "estimator": public.Full(),
            "data_chunk": 5,
        },
        1e-7,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_agree(case: str) -> None:
    engine, name, optim, number, options, rounding = CASES[case]
    runs = []
    for backend in map(backend_of, PACKAGES):
        model, args, dim = program(backend, name)
        # An even number of pairs, so that a median averages; starts that are not symmetric.
        start = np.random.default_rng(11).gamma(2.0, size=(number, dim)) - 1.0
        given = () if optim is None else (optim(backend),)
        named = {"num_particles": number, **options(backend.public)}
        runs.append(Run(backend, engine, model, *given, args=args, start=start, **named))
    for _ in range(4 if optim is None else 5):
        loss, expected = (run.step() for run in runs)
        assert loss == pytest.approx(expected, rel=rounding / 10)
        one, other = (run.particles for run in runs)
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding / 10)
        if engine == "SVN":
            found = runs[0].engine.history["damping"][-1]
            np.testing.assert_allclose(found, runs[1].state.algorithm.damping, rtol=1e-12)


def test_the_rooms_have_the_same_names() -> None:
    ours, theirs = (backend_of(package).room("stein") for package in PACKAGES)
    assert ours.__all__ == theirs.__all__
