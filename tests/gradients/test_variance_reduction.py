"""SVRG and SAGA: exact where they must be, unbiased to rounding, and less noisy near the anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.gradients_support import Estimation, normal
from tests.stein_support import Run

use_float64()

ROWS, BATCH, POSITIONS = 12, 3, 2
X = normal(0, ROWS, 3)
Y = (X[:, 0] > 0.3).astype(float)
CYCLIC = [("SVRG", (100, "cyclic")), ("SAGA", ("cyclic",))]
cyclic = pytest.mark.parametrize(("name", "options"), CYCLIC)


def logistic(backend: Any) -> Any:
    """A prior with a Jacobian, a factor outside the plate, and rows that are not linear."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        scale = host.sample("scale", dist.HalfNormal(1.0))
        weights = host.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
        host.factor("outside", -(scale**3))
        with host.plate("N", len(y), subsample_size=BATCH) as rows:
            host.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


def estimation(backend: Any, name: str, *options: Any) -> Estimation:
    data = backend.arrays((X, Y))
    target, bound = backend.target(logistic(backend), data, likelihood_temperature=0.7)
    estimator = getattr(backend.public, name)(*options)
    return Estimation(backend, estimator, target, bound, POSITIONS)


def every_batch(found: Estimation, z: np.ndarray) -> np.ndarray:
    """Scores (rounds, P, D) from the present state by each batch of one round."""
    scores = []
    for first in range(0, ROWS, BATCH):
        if found.backend.is_pyro:
            minibatch = {"N": {"position": first}}
        else:
            position = found.backend.array(first, "int32")
            minibatch = {**found.state["minibatch"], "position N": position}
        scores.append(found.look(z, {**found.state, "minibatch": minibatch})[0].score)
    return np.stack(scores)


def positions(seed: int) -> np.ndarray:
    return normal(seed, POSITIONS, 4)


@pytest.mark.parametrize(("name", "options"), [*CYCLIC, ("SVRG", (3,)), ("SAGA", ("replacement",))])
def test_the_first_step_is_exact(backend: Any, name: str, options: tuple[Any, ...]) -> None:
    found, z = estimation(backend, name, *options), positions(1)
    np.testing.assert_allclose(found.estimate(z).score, found.full(z).score, rtol=1e-12)


@cyclic
def test_the_average_over_a_round_is_the_full_score(
    backend: Any, name: str, options: tuple[Any, ...]
) -> None:
    found, anchor = estimation(backend, name, *options), positions(1)
    found.estimate(anchor)
    # The anchor is a copy: the caller may use its memory again.
    anchor += 1.0
    z = positions(2)
    scores = every_batch(found, z)
    assert scores.std(0).max() > 0.1
    np.testing.assert_allclose(scores.mean(0), found.full(z).score, rtol=1e-11)


@cyclic
def test_noise_is_proportional_to_the_distance_from_the_anchor(
    backend: Any, name: str, options: tuple[Any, ...]
) -> None:
    found, anchor, apart = estimation(backend, name, *options), positions(1), positions(2)
    found.estimate(anchor)
    near, far = (every_batch(found, anchor + size * apart).std(0) for size in (1e-4, 2e-4))
    # The scale's gradient comes from the prior alone, which has no noise.
    np.testing.assert_allclose(far[:, 1:], 2.0 * near[:, 1:], rtol=1e-2)
    np.testing.assert_allclose(far[:, 0], 0.0, atol=1e-12)


def test_anchors_are_renewed_in_time(backend: Any) -> None:
    found, exact = estimation(backend, "SVRG", 3), []
    for step in range(9):
        z = positions(step)
        score, full = found.estimate(z), found.full(z)
        exact.append(np.allclose(score.score, full.score, rtol=1e-9))
        if exact[-1]:
            np.testing.assert_allclose(score.log_likelihood, full.log_likelihood, rtol=1e-9)
            np.testing.assert_array_equal(found.state["anchor"], z)
    assert exact == [True, False, False] * 3


def test_a_round_fills_the_table_anew(backend: Any) -> None:
    found, z = estimation(backend, "SAGA", "cyclic"), positions(2)
    found.estimate(positions(1))
    full = found.full(z).score
    errors = [np.abs(found.estimate(z).score - full).max() for _ in range(ROWS // BATCH + 1)]
    # The first step had the first batch of a round.
    assert min(errors[:-1]) > 1e-3 and errors[-1] < 1e-10


def test_a_step_that_is_not_finite_leaves_no_trace_in_the_table(backend: Any) -> None:
    """It is skipped: the steps after it are as good as if there had been none."""
    found, z = estimation(backend, "SAGA", "cyclic"), positions(2)
    found.estimate(positions(1))
    broken = positions(3)
    broken[0] = np.nan
    assert np.isnan(found.estimate(broken).score[0]).all()
    scores = every_batch(found, z)
    np.testing.assert_allclose(scores.mean(0), found.full(z).score, rtol=1e-11)


#: Number of rows, and steps along the path.
FEW, STEPS = 6, 600


@pytest.mark.in_one_package
@pytest.mark.parametrize(
    ("name", "options", "bias"),
    [
        ("SAGA", (), 0.0),
        ("SAGA", ("reshuffle",), -0.42),
        ("SAGA", ("cyclic",), -0.63),
        ("SVRG", (5,), 0.0),
        ("SVRG", (5, "replacement"), 0.0),
        ("ControlVariate", (), 0.0),
    ],
)
def test_the_bias_along_a_path_that_moves(
    backend: Any, name: str, options: tuple[Any, ...], bias: float
) -> None:
    """Errors of the score on the way at constant speed through a regression's slopes.

    With rows drawn without regard to the past the errors are those of a martingale, of mean zero:
    within four standard errors. Those of shuffled rounds repeat themselves less than that, so
    that the bound is wide. A table's entries are oldest for the rows that a round still has to
    draw, which is a bias of so many standard deviations of one score: z = -10 and -15.
    """
    host, dist = backend.host, backend.dist
    x, y = np.linspace(0.5, 2.0, FEW), normal(0, FEW)

    def line(x: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("N", len(y), subsample_size=1) as rows:
            host.sample("y", dist.Normal(slope * x[rows], 1.0), obs=y[rows])

    if name == "ControlVariate":
        options = ({"slope": backend.array(30.0)},)
    estimator = getattr(backend.public, name)(*options)
    target, bound = backend.target(line, backend.arrays((x, y)))
    found, errors = Estimation(backend, estimator, target, bound, 1), []
    for slope in 0.1 * np.arange(STEPS):
        exact = x @ (y - slope * x) - slope
        errors.append(found.estimate(np.array([[slope]])).score.item() - exact)
    # Rounds after the first, which the exact table begins.
    kept = np.array(errors[FEW:])
    error = len(kept) ** -0.5
    assert abs(kept.mean() / kept.std() - bias) < 4.0 * error


def test_rows_drawn_twice_count_once_in_the_table_and_steps_can_be_undone(backend: Any) -> None:
    found = estimation(backend, "SAGA", "replacement")
    found.estimate(positions(1))
    for seed in range(20):
        found.look(positions(100 + seed))
        found.estimate(positions(seed))
    table = backend.numpy(found.state["table"]).copy()
    if backend.is_pyro:  # which enters the last rows when it is sure that they stay
        table[found.state["rows"]] = found.state["gradient"]
    np.testing.assert_allclose(found.state["sum"], table.sum(0), rtol=1e-11)


def test_costs_are_stated(backend: Any) -> None:
    target = estimation(backend, "SVRG", 8).target
    SVRG, SAGA = backend.public.SVRG, backend.public.SAGA
    assert SVRG(8).evaluations_per_step(target) == pytest.approx(2 * BATCH / ROWS + 1 / 8)
    assert SAGA().evaluations_per_step(target) == pytest.approx(BATCH / ROWS)


def run_of(backend: Any, name: str, **options: Any) -> Run:
    data, adam = backend.arrays((X, Y)), backend.adam(0.1)
    return Run(backend, name, logistic(backend), adam, args=data, num_particles=3, **options)


@pytest.mark.parametrize("name", ["SVRG", "SAGA", "own rows"])
def test_particles_take_them_and_resume_exactly(backend: Any, name: str, tmp_path: Path) -> None:
    public = backend.public
    estimator = {
        "SVRG": lambda: public.Noisy(public.SVRG(4), level=0.1),
        "SAGA": public.SAGA,
        "own rows": lambda: public.Minibatch(own_rows=True),
    }[name]()
    first = run_of(backend, "SVGD", estimator=estimator).run(6)
    second = first.saved_and_loaded(tmp_path / "state").run(4)
    assert np.isfinite(first.run(4).losses).all()
    np.testing.assert_array_equal(second.losses[-4:], first.losses[6:])


def test_batches_of_each_position_resume_exactly(backend: Any, tmp_path: Path) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 10.0))
        with host.plate("rows", 8, subsample_size=len(y)):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    batches = [backend.arrays((rows,)) for rows in np.arange(8.0).reshape(2, 4)]
    estimator = backend.public.BatchArguments(batches, own_rows=True)
    options = {"args": batches[0], "num_particles": 3, "estimator": estimator}
    first = Run(backend, "SVGD", model, backend.adam(0.1), **options).run(3)
    second = first.saved_and_loaded(tmp_path / "state").run(4)
    first.run(4)
    np.testing.assert_array_equal(second.particles, first.particles)


def test_guides_take_them(backend: Any) -> None:
    fit = backend.fit(
        "ProximalScoreVI",
        logistic(backend),
        backend.autoguide.AutoDiagonalNormal,
        estimator=backend.public.SVRG(4),
        steps=10,
        args=backend.arrays((X, Y)),
    )
    assert np.isfinite(fit.losses).all()


def test_svgd_with_variance_reduction_is_svgd_with_svrg(backend: Any) -> None:
    named = run_of(backend, "SVGDVR", anchor_every=3).run(7)
    plain = run_of(backend, "SVGD", estimator=backend.public.SVRG(3)).run(7)
    np.testing.assert_array_equal(named.losses, plain.losses)
    np.testing.assert_array_equal(named.particles, plain.particles)
    with pytest.raises(ArgumentError, match="no estimator with SVGDVR"):
        run_of(backend, "SVGDVR", anchor_every=3, estimator=backend.public.SVRG(3))


@pytest.mark.parametrize("reset", [False, True])
def test_the_optimizer_starts_anew_at_anchors_if_asked(backend: Any, reset: bool) -> None:
    """Adam's first step moves every coordinate by the learning rate, and later ones by less."""
    run, first = run_of(backend, "SVGDVR", anchor_every=3, reset_optimizer=reset), []
    for _ in range(9):
        before = run.particles
        run.step()
        first.append(np.allclose(np.abs(run.particles - before), 0.1, rtol=1e-3))
    assert first == ([True, False, False] * 3 if reset else [True] + [False] * 8)


def test_options_are_checked(backend: Any) -> None:
    for bad in (0, 2.5, "8"):
        with pytest.raises(ArgumentError, match="anchor_every to be an int >= 1"):
            backend.public.SVRG(bad)
    with pytest.raises(ArgumentError, match="sampling to be one of"):
        backend.public.SAGA("shuffled")
    words = r"at most max_bytes=1000 .*12 rows times 100 pos.*SVRG"
    with pytest.raises(ArgumentError, match=words):
        data = backend.arrays((X, Y))
        target, bound = backend.target(logistic(backend), data)
        # Pyro's table is made when the positions are known.
        small = Estimation(backend, backend.public.SAGA(max_bytes=1000), target, bound, 100)
        small.estimate(np.zeros((100, 4)))


def test_models_that_do_not_fit_are_refused(backend: Any) -> None:
    host, dist, public = backend.host, backend.dist, backend.public

    def local(y: Any) -> None:
        with host.plate("N", len(y), subsample_size=2) as rows:
            mean = host.sample("local", dist.Normal(0.0, 1.0))
            host.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    def crossed(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("a", 4, subsample_size=2, dim=-1) as i:
            with host.plate("b", 3, subsample_size=1, dim=-2) as j:
                host.sample("y", dist.Normal(mean, 1.0), obs=y[j[:, None], i])

    def by_argument(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("N", 12, subsample_size=len(y)):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    rows, table = backend.array(np.ones(4)), backend.array(np.ones((3, 4)))
    cases = [
        (local, rows, public.SVRG(2), "no latent inside a subsampled plate with SVRG"),
        (local, rows, public.SAGA(), "no latent inside a subsampled plate with SAGA"),
        (crossed, table, public.SAGA(), r"one subsampled plate with SAGA.*'a', 'b'"),
        (by_argument, rows, public.SAGA(), "^Expected a model that looks up the rows"),
    ]
    for model, y, estimator, words in cases:
        with pytest.raises(ArgumentError, match=words):
            Estimation(backend, estimator, *backend.target(model, (y,)))
    Estimation(backend, public.SVRG(2), *backend.target(crossed, (table,)))
