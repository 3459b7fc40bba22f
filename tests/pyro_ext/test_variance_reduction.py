"""SVRG and SAGA: exact where they must be, unbiased to rounding, and less noisy near the anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDiagonalNormal

from ppl_ext.errors import ArgumentError
from pyro_ext.density import LogDensity
from pyro_ext.gradients import SAGA, SVRG, GradientEstimator, Noisy
from pyro_ext.score import ProximalScoreVI
from pyro_ext.stein import SVGD, SVGDVR

torch.set_default_dtype(torch.float64)

ROWS, BATCH, POSITIONS = 12, 3, 2
X = torch.tensor(np.random.default_rng(0).normal(size=(ROWS, 3)))
Y = (X[:, 0] > 0.3).double()
ESTIMATORS: list[GradientEstimator] = [SVRG(100, sampling="cyclic"), SAGA(sampling="cyclic")]


def logistic(x: torch.Tensor, y: torch.Tensor, batch: int | None = BATCH) -> None:
    """A prior with a Jacobian, a factor outside the plate, and rows that are not linear."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    weights = pyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
    pyro.factor("outside", -(scale**3))
    with pyro.plate("N", len(y), subsample_size=batch) as rows:
        pyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def setup(temperature: float = 0.7) -> tuple[LogDensity, Any]:
    target = LogDensity(logistic, (X, Y), likelihood_temperature=temperature)
    return target, target.bind(X, Y)


def anchored(estimator: GradientEstimator, z: torch.Tensor) -> tuple[LogDensity, Any, Any]:
    """The target, its data and the estimator's state after a first step at z."""
    target, data = setup()
    state = estimator.init(target, data, generator())
    _, state = estimator.estimate(target, state, z, data, generator())
    return target, data, state


def every_batch(
    estimator: GradientEstimator, target: LogDensity, data: Any, state: Any, z: torch.Tensor
) -> torch.Tensor:
    """Scores (rounds, P, D) from the same state by each batch of one round."""
    scores = []
    for first in range(0, ROWS, BATCH):
        position = {**state, "minibatch": {"N": {"position": first}}}
        found, _ = estimator.estimate(target, position, z, data, generator())
        scores.append(found.score)
    return torch.stack(scores)


def positions(seed: int) -> torch.Tensor:
    return torch.randn(POSITIONS, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("estimator", [*ESTIMATORS, SVRG(3), SAGA("replacement")])
def test_the_first_step_is_exact(estimator: GradientEstimator) -> None:
    target, data = setup()
    z = positions(1)
    state = estimator.init(target, data, generator())
    found, _ = estimator.estimate(target, state, z, data, generator())
    torch.testing.assert_close(found.score, target.full_score(z, data).score)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_average_over_a_round_is_the_full_score(estimator: GradientEstimator) -> None:
    target, data, state = anchored(estimator, positions(1))
    z = positions(2)
    scores = every_batch(estimator, target, data, state, z)
    assert scores.std(0).max() > 0.1
    torch.testing.assert_close(scores.mean(0), target.full_score(z, data).score)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_noise_is_proportional_to_the_distance_from_the_anchor(
    estimator: GradientEstimator,
) -> None:
    anchor, apart = positions(1), positions(2)
    target, data, state = anchored(estimator, anchor)
    near, far = (
        every_batch(estimator, target, data, state, anchor + size * apart).std(0)
        for size in (1e-4, 2e-4)
    )
    # The scale's gradient comes from the prior alone, which has no noise.
    torch.testing.assert_close(far[:, 1:], 2.0 * near[:, 1:], rtol=1e-2, atol=0.0)
    torch.testing.assert_close(far[:, 0], torch.zeros(POSITIONS), rtol=0.0, atol=1e-12)


def test_anchors_are_renewed_in_time() -> None:
    target, data = setup()
    estimator = SVRG(3)
    state = estimator.init(target, data, generator())
    exact = []
    for step in range(9):
        z = positions(step)
        found, state = estimator.estimate(target, state, z, data, generator())
        full = target.full_score(z, data)
        exact.append(torch.allclose(found.score, full.score, rtol=1e-9))
        if exact[-1]:
            torch.testing.assert_close(found.log_likelihood, full.log_likelihood)
            torch.testing.assert_close(state["anchor"], z)
    assert exact == [True, False, False] * 3


def test_an_anchor_keeps_no_memory_of_the_caller() -> None:
    target, data = setup()
    estimator = SVRG(10, sampling="cyclic")
    z = positions(1)
    _, state = estimator.estimate(
        target, estimator.init(target, data, generator()), z, data, generator()
    )
    z.add_(1.0)
    scores = every_batch(estimator, target, data, state, z)
    torch.testing.assert_close(scores.mean(0), target.full_score(z, data).score)


def test_a_round_fills_the_table_anew() -> None:
    estimator = SAGA("cyclic")
    target, data, state = anchored(estimator, positions(1))
    z = positions(2)
    errors = []
    for _ in range(ROWS // BATCH + 1):
        found, state = estimator.estimate(target, state, z, data, generator())
        errors.append(float((found.score - target.full_score(z, data).score).abs().max()))
    # The first step had the first batch of a round.
    assert min(errors[:-1]) > 1e-3 and errors[-1] < 1e-10


def test_rows_drawn_twice_count_once_in_the_table_and_steps_can_be_undone() -> None:
    estimator = SAGA("replacement")
    target, data, state = anchored(estimator, positions(1))
    random = generator()
    for seed in range(20):
        undone = estimator.estimate(target, state, positions(100 + seed), data, random)
        del undone
        _, state = estimator.estimate(target, state, positions(seed), data, random)
    table = state["table"].clone()
    table[state["rows"]] = state["gradient"]
    torch.testing.assert_close(state["sum"], table.sum(0))


def test_costs_are_stated() -> None:
    target, _ = setup()
    assert SVRG(8).evaluations_per_step(target) == pytest.approx(2 * BATCH / ROWS + 1 / 8)
    assert SAGA().evaluations_per_step(target) == pytest.approx(BATCH / ROWS)


@pytest.mark.parametrize("estimator", [Noisy(SVRG(4), level=0.1), SAGA()])
def test_particles_take_them_and_resume_exactly(
    estimator: GradientEstimator, tmp_path: Path
) -> None:
    def make() -> SVGD:
        optim = pyro.optim.Adam({"lr": 0.1})
        return SVGD(logistic, optim, num_particles=3, estimator=estimator, seed=0)

    whole, first, second = make(), make(), make()
    whole.run(10, X, Y, progress_bar=False)
    first.run(6, X, Y, progress_bar=False)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    second.run(4, X, Y, progress_bar=False)
    assert np.isfinite(whole.losses).all()
    assert second.losses == whole.losses


def test_guides_take_them() -> None:
    engine = ProximalScoreVI(logistic, AutoDiagonalNormal, estimator=SVRG(4), seed=0)
    assert np.isfinite(engine.run(10, X, Y, progress_bar=False).losses).all()


def test_svgd_with_variance_reduction_is_svgd_with_svrg() -> None:
    def run(make: Any, **options: Any) -> SVGD:
        optim = pyro.optim.Adam({"lr": 0.1})
        engine = make(logistic, optim, num_particles=3, seed=0, **options)
        engine.run(7, X, Y, progress_bar=False)
        return engine

    named, plain = run(SVGDVR, anchor_every=3), run(SVGD, estimator=SVRG(3))
    assert named.losses == plain.losses
    torch.testing.assert_close(named.particles, plain.particles)
    with pytest.raises(ArgumentError, match="no estimator with SVGDVR"):
        run(SVGDVR, anchor_every=3, estimator=SVRG(3))


@pytest.mark.parametrize("reset", [False, True])
def test_the_optimizer_starts_anew_at_anchors_if_asked(reset: bool) -> None:
    """Adam's first step moves every coordinate by the learning rate, and later ones by less."""
    optim = pyro.optim.Adam({"lr": 0.1})
    engine = SVGDVR(logistic, optim, num_particles=3, anchor_every=3, reset_optimizer=reset, seed=0)
    engine.setup(X, Y)
    first = []
    for _ in range(9):
        before = engine.particles
        engine.step(X, Y)
        moved = (engine.particles - before).abs()
        first.append(torch.allclose(moved, torch.full_like(moved, 0.1), rtol=1e-3))
    assert first == ([True, False, False] * 3 if reset else [True] + [False] * 8)


def test_refusals() -> None:
    for bad in (0, 2.5, "8"):
        with pytest.raises(ArgumentError, match="anchor_every to be an int >= 1"):
            SVRG(bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="sampling to be one of"):
        SAGA("shuffled")
    target, data = setup()
    state = SAGA(max_bytes=1000).init(target, data, generator())
    with pytest.raises(
        ArgumentError, match=r"at most max_bytes=1000 .*12 rows times 100 pos.*SVRG"
    ):
        SAGA(max_bytes=1000).estimate(target, state, torch.zeros(100, 4), data, generator())

    def local(y: torch.Tensor) -> None:
        with pyro.plate("N", len(y), subsample_size=2) as rows:
            mean = pyro.sample("local", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    def crossed(y: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("a", 4, subsample_size=2, dim=-1) as i:
            with pyro.plate("b", 3, subsample_size=1, dim=-2) as j:
                pyro.sample("y", dist.Normal(mean, 1.0), obs=y[j[:, None], i])

    def by_argument(y: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("N", 12, subsample_size=len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    cases = [
        (local, torch.ones(4), SVRG(2), "no latent inside a subsampled plate with SVRG"),
        (local, torch.ones(4), SAGA(), "no latent inside a subsampled plate with SAGA"),
        (crossed, torch.ones(3, 4), SAGA(), r"one subsampled plate with SAGA.*'a', 'b'"),
        (by_argument, torch.ones(4), SAGA(), "Minibatch draws the rows"),
    ]
    for model, y, estimator, words in cases:
        target = LogDensity(model, (y,))
        with pytest.raises(ArgumentError, match=words):
            estimator.init(target, target.bind(y), generator())
    target = LogDensity(crossed, (torch.ones(3, 4),))
    SVRG(2).init(target, target.bind(torch.ones(3, 4)), generator())
