"""Planted problems: both hosts compute the same, and exact draws are those of the program."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.posteriordb.programs.sites import SiteMap
from benchmarks.trust.judge import judge
from benchmarks.trust.pathologies import FAMILIES, PATHOLOGIES
from benchmarks.trust.planted.widths import Mixture
from benchmarks.trust.problems import columns_of
from benchmarks.trust.target import Target
from tests.backends import use_float64

use_float64()

PROPER = [name for name, problem in PATHOLOGIES.items() if problem.proper]


def target(name: str, backend: str) -> Target:
    problem = PATHOLOGIES[name]
    return Target(backend, problem.model(backend), problem.args(backend))


def test_names_are_unique_and_there_are_enough() -> None:
    assert len(PATHOLOGIES) == sum(len(family.PROBLEMS) for family in FAMILIES) >= 25
    assert len({problem.kind for problem in PATHOLOGIES.values()}) >= 12


@pytest.mark.parametrize("name", PATHOLOGIES)
def test_hosts_agree(name: str) -> None:
    """At exact draws, or where there are none at random points."""
    problem = PATHOLOGIES[name]
    first, second = (target(name, backend) for backend in ("numpyro", "pyro"))
    assert first.dim == second.dim == problem.dim
    if problem.proper:
        draws = problem.draws(20)
        positions = [one.unconstrain(draws) for one in (first, second)]
        found = first.constrain(positions[0])
        for site, value in draws.items():
            np.testing.assert_allclose(found[site], value, rtol=1e-6, atol=1e-9)
    else:
        positions = [np.random.default_rng(0).normal(size=(20, problem.dim))] * 2
    values, scores = zip(
        *(one.value_and_score(z) for one, z in zip((first, second), positions, strict=True)),
        strict=True,
    )
    if problem.same_transform:
        np.testing.assert_allclose(positions[0], positions[1], rtol=1e-6, atol=1e-8)
        scale = np.abs(scores[1]).max()
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6, atol=1e-7 * scale)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("name", PROPER)
def test_exact_draws_are_those_of_the_program(name: str) -> None:
    """Stein's identities: the mean score is 0, and that of score_i z_i is -1."""
    problem = PATHOLOGIES[name]
    if not problem.smooth:
        pytest.skip("the density has a jump")
    own = target(name, "pyro")
    rows = max((len(value) for value in problem.arguments), default=0)
    z = own.unconstrain(problem.draws(4_000 if problem.dim + rows < 200 else 400))
    score = own.value_and_score(z)[1]
    assert np.isfinite(score).all()
    centred = z - z.mean(0)
    for values in (score, score * centred + 1.0):
        error = values.std(0) / np.sqrt(len(z))
        assert (np.abs(values.mean(0)) < 4.5 * error + 1e-9 * np.abs(score).max(0)).all()


FLAT = [name for name in PROPER if PATHOLOGIES[name].dim <= 2]


@pytest.mark.parametrize("name", FLAT)
def test_exact_draws_have_the_density_of_the_program(name: str) -> None:
    """Up to two dimensions, on a grid: weights of separate modes and steps, which scores miss."""
    problem, own = PATHOLOGIES[name], target(name, "pyro")
    z = own.unconstrain(problem.draws(8_000))
    low, high = np.quantile(z, [0.003, 0.997], axis=0)
    z = z[((z >= low) & (z <= high)).all(1)]
    size = 20_000 if problem.dim == 1 else 500
    edges = np.linspace(low, high, size + 1).T
    middles = 0.5 * (edges[:, 1:] + edges[:, :-1])
    grid = np.stack(np.meshgrid(*middles, indexing="ij"), -1)
    values = own.value_and_score(grid.reshape(-1, problem.dim))[0].reshape(grid.shape[:-1])
    density = np.exp(values - values.max())
    for axis in range(problem.dim):
        others = tuple(other for other in range(problem.dim) if other != axis)
        below = np.concatenate([[0.0], np.cumsum(density.sum(others))])
        expected = np.interp(np.sort(z[:, axis]), edges[axis], below / below[-1])
        distance = np.abs(expected - (np.arange(len(z)) + 0.5) / len(z)).max()
        # Kolmogorov's quantile for a chance of 1e-4.
        assert distance < 2.23 / np.sqrt(len(z))


@pytest.mark.parametrize("name", PROPER)
def test_exact_draws_are_right(name: str) -> None:
    """Judged by others of theirs, in both spaces."""
    problem, own = PATHOLOGIES[name], target(name, "pyro")
    number = 4_000 if problem.dim < 200 else 1_000
    first, second = (
        columns_of(own, SiteMap(), draws, draws)
        for draws in (problem.draws(number, seed) for seed in (0, 1))
    )
    found = judge(first, second)
    assert found.right, found.reasons


def test_reach_is_the_share_of_ascents_that_end_in_a_mode() -> None:
    """From draws of a mixture of modes far apart its weights; none of a needle's from outside."""
    apart = Mixture(np.array([0.3, 0.7]), np.array([[0.0], [20.0]]), np.full((2, 1, 1), 1.0))
    np.testing.assert_allclose(apart.reach(2_000), [0.3, 0.7], atol=4.0 * np.sqrt(0.21 / 2_000))
    means, roots = np.array([np.zeros(3), np.ones(3)]), np.array([np.eye(3), 1e-3 * np.eye(3)])
    hidden = Mixture(np.array([0.5, 0.5]), means, roots, prior=1.0)
    np.testing.assert_array_equal(hidden.reach(200), [1.0, 0.0])
    assert hidden.least_reach() == 0.0


def test_scores_of_mixtures_are_the_slopes_of_their_densities() -> None:
    roots = np.array([[[1.0, 0.0], [0.5, 0.3]], [[0.2, 0.0], [0.0, 2.0]]])
    mixture = Mixture(np.array([0.4, 0.6]), np.array([[0.0, 1.0], [2.0, 0.0]]), roots)
    z, step = np.random.default_rng(0).normal(size=(5, 2)), 1e-5
    _, scores = mixture.evaluate(z)
    for axis, move in enumerate(step * np.eye(2)):
        slope = (mixture.evaluate(z + move)[0] - mixture.evaluate(z - move)[0]) / (2.0 * step)
        np.testing.assert_allclose(scores[:, axis], slope, rtol=1e-6, atol=1e-6)
