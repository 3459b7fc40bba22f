"""SVRG on models whose batches are their arguments: exact sweeps over the arguments of all rows."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.errors import ArgumentError
from pyro_ext.density import LogDensity
from pyro_ext.gradients import SVRG
from pyro_ext.gradients.full_data import exact_score
from pyro_ext.stein import SVGD, SVGDVR

torch.set_default_dtype(torch.float64)

ROWS, BATCH = 12, 3
X = torch.tensor(np.random.default_rng(0).normal(size=(ROWS, 3)))
Y = (X[:, 0] > 0.3).double()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def by_argument(x: torch.Tensor, y: torch.Tensor) -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    weights = pyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with pyro.plate("N", ROWS, subsample_size=len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def by_index(x: torch.Tensor, y: torch.Tensor) -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    weights = pyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with pyro.plate("N", len(y), subsample_size=BATCH) as rows:
        pyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


def batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    ends = np.cumsum(sizes)
    return [
        (X[end - size : end], Y[end - size : end]) for end, size in zip(ends, sizes, strict=True)
    ]


ALIKE = batches(3, 3, 3, 3)


@pytest.mark.parametrize("parts", [batches(12), ALIKE, batches(5, 5, 2), batches(1, 4, 1, 4, 2)])
def test_sweeps_are_exact(parts: list) -> None:
    target = LogDensity(by_argument, ALIKE[0], likelihood_temperature=0.7)
    reference = LogDensity(by_index, (X, Y), likelihood_temperature=0.7)
    z = torch.randn(2, 4, generator=generator())
    expected = reference.full_score(z, reference.bind(X, Y))
    found = exact_score(target, z, tuple(parts))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize("full_data", [(X, Y), ALIKE, iter(ALIKE)])
def test_the_average_over_a_round_is_the_full_score(full_data) -> None:
    estimator = SVRG(100, full_data=full_data)
    target = LogDensity(by_argument, ALIKE[0])
    anchor, z = torch.randn(2, 2, 4, generator=generator())
    first = target.bind(*ALIKE[0])
    state = estimator.init(target, first, generator())
    exact, state = estimator.estimate(target, state, anchor, first, generator())
    np.testing.assert_allclose(
        exact.score, exact_score(target, anchor, ((X, Y),)).score, rtol=1e-11
    )
    scores = [
        estimator.estimate(target, state, z, target.bind(*batch), generator())[0].score.numpy()
        for batch in ALIKE
    ]
    assert np.std(scores, axis=0).max() > 0.1
    full = exact_score(target, z, ((X, Y),)).score
    np.testing.assert_allclose(np.mean(scores, axis=0), full, rtol=1e-11)


@pytest.mark.parametrize("full_data", [(X, Y), ALIKE])
def test_steps_are_those_of_rows_that_the_engine_draws(full_data) -> None:
    adam, options = pyro.optim.Adam({"lr": 0.05}), {"num_particles": 5, "seed": 0}
    ours = SVGDVR(by_argument, adam, anchor_every=3, full_data=full_data, **options)
    theirs = SVGD(by_index, adam, estimator=SVRG(3, "cyclic"), **options)
    for step in range(8):
        loss = ours.step(*ALIKE[step % len(ALIKE)])
        assert loss == pytest.approx(theirs.step(X, Y), rel=1e-9)
    torch.testing.assert_close(ours.particles, theirs.particles, rtol=1e-9, atol=1e-9)


def test_a_data_loader_gives_batches() -> None:
    rows = torch.utils.data.TensorDataset(X, Y)
    loader = torch.utils.data.DataLoader(rows, batch_size=5)
    target = LogDensity(by_argument, ALIKE[0])
    z = torch.randn(2, 4, generator=generator())
    estimator = SVRG(3, full_data=loader)
    data = target.bind(*ALIKE[0])
    state = estimator.init(target, data, generator())
    found, _ = estimator.estimate(target, state, z, data, generator())
    torch.testing.assert_close(found.score, exact_score(target, z, ((X, Y),)).score)


@pytest.mark.parametrize("full_data", [(X, Y), ALIKE])
def test_costs_are_sweeps_over_all_rows(full_data) -> None:
    target = LogDensity(by_argument, ALIKE[0])
    estimator = SVRG(8, full_data=full_data)
    assert estimator.evaluations_per_step(target) == 2.0 * BATCH / ROWS + 1 / 8


def test_refusals() -> None:
    target = LogDensity(by_argument, ALIKE[0])
    data = target.bind(*ALIKE[0])
    with pytest.raises(ArgumentError, match="Expected full_data with a model whose batches"):
        SVRG(3).init(target, data, generator())
    with pytest.raises(ArgumentError, match=r"12\] in all, found 9"):
        SVRG(3, full_data=ALIKE[:3]).init(target, data, generator())
    drawn = LogDensity(by_index, (X, Y))
    with pytest.raises(ArgumentError, match="Expected no full_data"):
        SVRG(3, full_data=(X, Y)).init(drawn, drawn.bind(X, Y), generator())
    for wrong in ([], 3, [X, Y]):
        with pytest.raises(ArgumentError, match="to be a tuple of the model's arguments"):
            SVRG(3, full_data=wrong)
    with pytest.raises(ArgumentError, match="leading axes"):
        SVRG(3, full_data=(1.0, "a"))
    with pytest.raises(ArgumentError, match=r"leading axes \[1, 12\]"):
        SVRG(3, full_data=(X, Y[:1]))

    def unscaled(x: torch.Tensor, y: torch.Tensor) -> None:
        weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("N", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    target = LogDensity(unscaled, ALIKE[0])
    with pytest.raises(ArgumentError, match="scales its batches up to all rows"):
        SVRG(3, full_data=ALIKE).init(target, target.bind(*ALIKE[0]), generator())


def test_keyword_arguments_reach_the_sweep() -> None:
    def model(x: torch.Tensor, y: torch.Tensor, sigma: float = 1.0) -> None:
        weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("N", ROWS, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(x @ weights, sigma), obs=y)

    target = LogDensity(model, ALIKE[0])
    data, every = target.bind(*ALIKE[0], sigma=2.0), target.bind(X, Y, sigma=2.0)
    z = torch.randn(2, 3, generator=generator())
    estimator = SVRG(3, full_data=ALIKE)
    state = estimator.init(target, data, generator())
    found, _ = estimator.estimate(target, state, z, data, generator())
    np.testing.assert_allclose(found.score, target.score(z, every).score, rtol=1e-10)
