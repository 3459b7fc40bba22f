"""``find_start`` on programs, in both packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.start.search import WIDTH, InPieces, pieces_together
from ppl_ext.start.start import Start
from tests.backends import from_zoo
from tests.registry import NORMAL_BY_MINIBATCH
from tests.stein_support import check_moments


def start_of(backend: Any, model: Any, *args: Any, seed: int = 0, **kwargs: Any) -> Start:
    """The start of a program."""
    if backend.is_pyro:
        return backend.public.find_start(model, *args, seed=seed, **kwargs)
    return backend.public.find_start(backend.key(seed), model, *args, **kwargs)


@pytest.mark.parametrize("name", ["conjugate_normal", "lognormal", *NORMAL_BY_MINIBATCH])
def test_draws_are_right_where_the_posterior_is_normal(backend: Any, name: str) -> None:
    model, args, _ = from_zoo(backend, name)
    start = start_of(backend, model, *args)
    target, data = backend.target(model, args)
    draws = target.constrain(backend.array(start.draw(2000)), data)
    check_moments(name, {k: backend.numpy(v) for k, v in draws.items()}, 0.1, 0.1)
    assert len(start.modes) == 1 and start.evaluations < 300


def test_seeds_say_all(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "logistic_regression")
    first, again, other = (start_of(backend, model, *args, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.mean, again.mean)
    assert np.abs(first.mean - other.mean).max() > 0.0


def test_many_rows_are_looked_at_in_a_batch(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large random batch in place of all rows: the mode moves by the batch's error at most."""
    monkeypatch.setattr("ppl_ext.start.search.MOST_ROWS", 400)
    host, dist = backend.host, backend.dist
    y = np.sort(np.random.default_rng(0).normal(3.0, 1.0, 4000))

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y), subsample_size=10) as rows:
            host.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    start = start_of(backend, model, backend.array(y))
    # 400 rows know the mean to 1/20. The first 400 rows of the sorted data would say 1.2.
    assert abs(start.mean[0] - y.mean()) < 4 * 0.05
    # The density is still that of 4,000 rows.
    assert start.modes[0].deviations[0] == pytest.approx(1 / np.sqrt(4000), rel=0.02)


def test_programs_without_a_finite_start_are_refused(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        host.sample("y", dist.Normal(mean, 1.0).expand([3]).to_event(1), obs=y)

    with pytest.raises(backend.public.ModelCheckError):
        start_of(backend, model, backend.array([0.0, np.nan, 1.0]))


def test_pieces_of_one_call_are_the_pieces_alone(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        scale = host.sample("scale", dist.LogNormal(backend.array(0.0), 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, scale), obs=y)

    target, data = backend.target(model, (backend.array(np.linspace(-1.0, 2.0, 12)),))
    piece_of = backend.room("start").piece_of
    z = np.random.default_rng(0).normal(size=(9 * WIDTH + 3, target.dim))
    together, alone = (InPieces(piece_of(target, data, None)) for _ in range(2))
    values, scores = together(z)
    pieces = [alone(z[first : first + WIDTH]) for first in range(0, len(z), WIDTH)]
    assert values.tolist() == np.concatenate([each[0] for each in pieces]).tolist()
    assert scores.tolist() == np.concatenate([each[1] for each in pieces]).tolist()
    assert together.calls == alone.calls == 10
    exact = target.log_density(backend.array(z), data)
    np.testing.assert_allclose(values, backend.numpy(exact), rtol=1e-4)


def test_long_vectors_and_many_data_are_evaluated_piece_by_piece() -> None:
    assert pieces_together(2, 100) == 8
    assert pieces_together(10_000, 100) == pieces_together(2, 10**6) == 1
    assert pieces_together(0, 0) == 8
