"""Exact scores and those of minibatches: unbiased, one set of rows a step, honest about cost."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import backend_of, use_float64
from tests.density_support import rows as rows_of
from tests.gradients_support import Estimation, normal

use_float64()

Y = normal(0, 6, 4)


def local_model(backend: Any) -> Any:
    """Local latents, a masked and scaled observation, factors inside and outside the plate."""
    host, dist, handlers, xp = backend.host, backend.dist, backend.handlers, backend.xp

    def model(y: Any, batch: int | None = None) -> None:
        a = host.sample("a", dist.LogNormal(0.0, 0.5))
        host.factor("outside", -(a**3))
        with host.plate("N", len(y), subsample_size=batch) as rows:
            local = host.sample("local", dist.Uniform(0.0, a))
            host.factor("inside", -xp.abs(y[rows, 1]) * a)
            with handlers.mask(mask=y[rows, 2] > 0), handlers.scale(scale=1.5):
                host.sample("y", dist.Normal(local, a), obs=y[rows, 0])

    return model


def crossed_model(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(y: Any, rows: int | None = None, columns: int | None = None) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        row_plate = host.plate("rows", y.shape[0], subsample_size=rows, dim=-2)
        with host.plate("columns", y.shape[1], subsample_size=columns, dim=-1) as j:
            beta = host.sample("beta", dist.Exponential(1.0))
            with row_plate as i:
                host.sample("y", dist.Normal(mu + beta, 1.0), obs=y[i[:, None], j])

    return model


def normal_mean(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(y: Any, batch: int | None = None) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        with host.plate("N", len(y), subsample_size=batch) as rows:
            host.sample("y", dist.Normal(a, 1.0), obs=y[rows])

    return model


def by_argument(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        with host.plate("N", 60, subsample_size=len(y)):
            host.sample("y", dist.Normal(a, 1.0), obs=y)

    return model


def estimation(backend: Any, number: int, batch: int, sampling: str = "reshuffle") -> Estimation:
    """Minibatches of so many of 0, 1, 2, ..."""
    target, data = backend.target(
        normal_mean(backend), (backend.array(np.arange(float(number))),), {"batch": batch}
    )
    return Estimation(backend, backend.public.Minibatch(sampling), target, data)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (local_model, {"batch": 2}),
        (local_model, {"batch": 4}),
        (crossed_model, {"rows": 3, "columns": 2}),
    ],
)
def test_average_over_all_batches_is_the_full_score(
    backend: Any, model: Any, options: dict[str, int]
) -> None:
    target, data = backend.target(model(backend), (backend.array(Y),), options)
    z = backend.array(normal(1, 2, target.dim))
    order = np.random.default_rng(1)
    batches = []
    for plate in target.plates.values():
        size, count = plate.size, plate.subsample_size
        # Disjoint batches of a shuffled order; several plates give the cross product. Where
        # batches do not divide the rows, all subsets.
        chosen: Any = itertools.combinations(range(size), count)
        if size % count == 0:
            chosen = order.permutation(size).reshape(-1, count)
        batches.append([(plate.name, np.array(rows)) for rows in chosen])
    scores = [
        backend.numpy(target.score(z, data, rows_of(backend, **dict(batch))).score)
        for batch in itertools.product(*batches)
    ]
    full = backend.numpy(target.full_score(z, data).score)
    # The batches differ, or the average would show nothing.
    assert np.std(scores, axis=0).max() > 0.1
    np.testing.assert_allclose(np.mean(scores, axis=0), full, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("number", "batch"), [(12, 3), (11, 3), (6, 2)])
def test_an_epoch_uses_every_row_at_most_once(backend: Any, number: int, batch: int) -> None:
    drawn = estimation(backend, number, batch)
    epochs = []
    for _ in range(40):
        seen = [row for _ in range(number // batch) for row in drawn.draw()["N"].tolist()]
        # Batches that fill an epoch use all.
        assert len(set(seen)) == number // batch * batch
        epochs.append(tuple(seen))
    # Of 6! orders two of 40 may well be the same.
    assert len(set(epochs)) == 40 or number == 6
    assert len(set(epochs)) > 30
    # Rows that an epoch leaves out differ from epoch to epoch: none is left out always.
    assert set().union(*epochs) == set(range(number))


def test_ragged_epochs_keep_every_row_equally_likely(backend: Any) -> None:
    drawn, steps = estimation(backend, 6, 4), 3000
    rows = np.array([drawn.draw()["N"] for _ in range(steps)])
    assert all(len(set(batch)) == 4 for batch in rows.tolist())
    frequency = np.bincount(rows.ravel(), minlength=6) / steps
    # Each row is in a batch with probability 4/6, independently over steps (one per epoch).
    error = np.sqrt(4 / 6 * 2 / 6 / steps)
    assert np.abs(frequency - 4 / 6).max() < 5 * error


def test_replacement_draws_rows_independently(backend: Any) -> None:
    drawn, steps = estimation(backend, 6, 4, "replacement"), 3000
    rows = np.array([drawn.draw()["N"] for _ in range(steps)])
    assert rows.min() >= 0 and rows.max() <= 5
    distinct = np.mean([len(set(batch)) == 4 for batch in rows.tolist()])
    expected = 6 * 5 * 4 * 3 / 6**4
    assert abs(distinct - expected) < 5 * np.sqrt(expected * (1 - expected) / steps)


@pytest.mark.parametrize("sampling", ["reshuffle", "replacement"])
def test_minibatch_scores_are_unbiased(backend: Any, sampling: str) -> None:
    options = {"rows": 4, "columns": 3}
    target, data = backend.target(crossed_model(backend), (backend.array(Y),), options)
    found = Estimation(backend, backend.public.Minibatch(sampling), target, data)
    z, steps = normal(1, 2, target.dim), 4000
    scores = np.array([found.estimate(z).score for _ in range(steps)])
    # Batches of one epoch are not used twice here (4 of 6 rows, 3 of 4 columns), so that this is
    # an upper bound; 10 components, 5 standard errors.
    error = np.std(scores, axis=0) / np.sqrt(steps)
    assert np.all(np.abs(scores.mean(0) - found.full(z).score) < 5 * error + 1e-12)


@pytest.mark.parametrize("sampling", ["reshuffle", "replacement"])
def test_all_positions_see_the_same_rows(backend: Any, sampling: str) -> None:
    found, z = estimation(backend, 12, 3, sampling), np.array([[0.5], [-2.0]])
    for _ in range(5):
        score = found.estimate(z).score
        # With other rows the difference would hold the difference of their sums, too.
        np.testing.assert_allclose(score[0] - score[1], -2.5 * 13, rtol=1e-12)


def test_full_is_exact_and_the_same_state_gives_the_same_batch(backend: Any) -> None:
    target, data = backend.target(
        normal_mean(backend), (backend.array(np.arange(11.0)),), {"batch": 3}, data_chunk=4
    )
    z = np.array([[0.5]])
    found = Estimation(backend, backend.public.Full(), target, data)
    assert found.estimate(z).score.item() == pytest.approx(-0.5 + (np.arange(11.0) - 0.5).sum())
    assert found.state == {}
    if not backend.is_pyro:  # Pyro's engines put their generator back beside the state
        again = Estimation(backend, backend.public.Minibatch(), target, data)
        first, second = (again.look(z)[0].score for _ in range(2))
        np.testing.assert_array_equal(first, second)


def test_the_default_follows_the_model_and_costs_are_stated(backend: Any) -> None:
    public, default = backend.public, backend.room("gradients").default_estimator
    y = backend.array(Y)
    subsampled, _ = backend.target(crossed_model(backend), (y,), {"rows": 3, "columns": 2})
    assert default(subsampled) == public.Minibatch()
    assert public.Minibatch().evaluations_per_step(subsampled) == pytest.approx(3 / 6 * 2 / 4)
    assert public.Full().evaluations_per_step(subsampled) == 1.0
    whole, data = backend.target(crossed_model(backend), (y,))
    assert default(whole) == public.Full()
    arguments, batch = backend.target(by_argument(backend), (y[:, 0],))
    assert default(arguments) == public.Full()
    assert public.Full().evaluations_per_step(arguments) == pytest.approx(0.1)
    for target, bound, words in ((whole, data, "none"), (arguments, batch, "passed as arguments")):
        words = rf"subsample_size=B.*found .*{words}.*Full\(\)"
        with pytest.raises(ArgumentError, match=words):
            Estimation(backend, public.Minibatch(), target, bound)
    with pytest.raises(ArgumentError, match="'reshuffle', 'replacement'.*'shuffled'"):
        public.Minibatch("shuffled")


ESTIMATORS = {
    "Minibatch": {"sampling": "cyclic"},
    "SVRG": {"anchor_every": 3, "sampling": "cyclic"},
    "SAGA": {"sampling": "cyclic"},
}


@pytest.mark.parametrize(("name", "options"), ESTIMATORS.items())
def test_the_same_rows_give_the_same_scores_in_both_packages(
    name: str, options: dict[str, Any]
) -> None:
    y, both = np.linspace(-1.0, 3.0, 10), []
    for backend in map(backend_of, ("pyro", "numpyro")):
        target, data = backend.target(
            normal_mean(backend), (backend.array(y),), {"batch": 4}, likelihood_temperature=0.5
        )
        estimator = getattr(backend.public, name)(**options)
        both.append(Estimation(backend, estimator, target, data, 3))
    for step in range(7):
        one, other = (found.estimate(normal(step, 3, 1))[:3] for found in both)
        for part, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-9)
