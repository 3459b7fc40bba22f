"""SVRG on models whose batches are their arguments: exact sweeps over the arguments of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.gradients_support import Estimation, normal
from tests.stein_support import Run

use_float64()

ROWS, BATCH = 12, 3
X = normal(0, ROWS, 3)
Y = (X[:, 0] > 0.3).astype(float)
full_data = pytest.mark.parametrize("full_data", ["all rows", "batches"])


def by_argument(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        scale = host.sample("scale", dist.HalfNormal(1.0))
        weights = host.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
        with host.plate("N", ROWS, subsample_size=len(x)):
            host.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    return model


def by_index(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        scale = host.sample("scale", dist.HalfNormal(1.0))
        weights = host.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
        with host.plate("N", len(y), subsample_size=BATCH) as rows:
            host.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


def batches(backend: Any, *sizes: int) -> list[tuple[Any, Any]]:
    """All rows in batches of these sizes, in the order of the data."""
    ends = np.cumsum(sizes or (BATCH,) * 4)
    return [
        backend.arrays((X[end - size : end], Y[end - size : end]))
        for end, size in zip(ends, sizes or (BATCH,) * 4, strict=True)
    ]


def given(backend: Any, kind: str) -> Any:
    """The whole data in one of the forms that are taken."""
    alike = batches(backend)
    return {"all rows": backend.arrays((X, Y)), "batches": alike, "iterator": iter(alike)}[kind]


def exact(backend: Any, target: Any, z: np.ndarray, parts: Any = None) -> Any:
    """The score by a sweep over all arguments."""
    parts = (backend.arrays((X, Y)),) if parts is None else tuple(parts)
    sweep = backend.room("gradients.full_data").exact_score
    found = backend.compiled(lambda z: sweep(target, z, parts))(backend.array(z))
    return type(found)(*map(backend.numpy, found))


@pytest.mark.parametrize("sizes", [(12,), (3, 3, 3, 3), (5, 5, 2), (1, 4, 1, 4, 2)])
def test_sweeps_are_exact(backend: Any, sizes: tuple[int, ...]) -> None:
    options = {"likelihood_temperature": 0.7}
    target, _ = backend.target(by_argument(backend), batches(backend)[0], **options)
    reference, data = backend.target(by_index(backend), backend.arrays((X, Y)), **options)
    z = normal(1, 2, 4)
    expected = reference.full_score(backend.array(z), data)
    found = exact(backend, target, z, batches(backend, *sizes))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize("full_data", ["all rows", "batches", "iterator"])
def test_the_average_over_a_round_is_the_full_score(backend: Any, full_data: str) -> None:
    alike, (anchor, z) = batches(backend), normal(1, 2, 2, 4)
    target, first = backend.target(by_argument(backend), alike[0])
    estimator = backend.public.SVRG(100, full_data=given(backend, full_data))
    found = Estimation(backend, estimator, target, first)
    expected = exact(backend, target, anchor).score
    np.testing.assert_allclose(found.estimate(anchor).score, expected, rtol=1e-11)
    scores = [found.look(z, data=target.bind(*batch))[0].score for batch in alike]
    assert np.std(scores, axis=0).max() > 0.1
    np.testing.assert_allclose(np.mean(scores, axis=0), exact(backend, target, z).score, rtol=1e-11)


@pytest.mark.parametrize("anchored", [False, True])
def test_the_average_over_a_round_of_unequal_batches_is_the_full_score(
    backend: Any, anchored: bool
) -> None:
    unequal, z = batches(backend, 5, 5, 2), normal(1, 2, 4)
    target, first = backend.target(by_argument(backend), unequal[0], likelihood_temperature=0.7)
    public, anchor = backend.public, {"scale": np.array(1.0), "weights": np.zeros(3)}
    if not backend.is_pyro:  # where one compiled program serves all
        with pytest.raises(ArgumentError, match="batches of one shape"):
            public.BatchArguments(unequal)
        return
    estimator = (
        public.ControlVariate(anchor, batches=unequal)
        if anchored
        else public.BatchArguments(unequal)
    )
    found = Estimation(backend, estimator, target, first)
    scores, densities = zip(*(found.estimate(z)[::2] for _ in unequal), strict=True)
    expected = exact(backend, target, z)
    assert np.std(scores, axis=0).max() > 0.1
    np.testing.assert_allclose(np.mean(scores, axis=0), expected.score, rtol=1e-11)
    np.testing.assert_allclose(np.mean(densities, axis=0), expected.log_likelihood, rtol=1e-11)


def test_batches_of_a_model_that_does_not_scale_them_up_are_refused(backend: Any) -> None:
    """Also where all rows come first, of which nothing has to be scaled up."""
    host, dist, public = backend.host, backend.dist, backend.public

    def model(x: Any, y: Any) -> None:
        weights = host.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with host.plate("N", len(x)):
            host.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    alike, rows = batches(backend), backend.arrays((X, Y))
    for estimator in (
        public.BatchArguments(alike),
        public.SVRG(2, full_data=alike),
        public.ControlVariate({"weights": np.zeros(3)}, batches=alike),
    ):
        target, data = backend.target(model, rows)
        with pytest.raises(ArgumentError, match="found none that scales 3 of 12 rows"):
            Estimation(backend, estimator, target, data)
        target, data = backend.target(by_argument(backend), rows)
        if not isinstance(estimator, public.ControlVariate):
            Estimation(backend, estimator, target, data)


@full_data
def test_steps_are_those_of_rows_that_the_engine_draws(backend: Any, full_data: str) -> None:
    alike, options = batches(backend), {"num_particles": 5}
    ours = Run(
        backend,
        "SVGDVR",
        by_argument(backend),
        backend.adam(0.05),
        args=alike[0],
        anchor_every=3,
        full_data=given(backend, full_data),
        **options,
    )
    theirs = Run(
        backend,
        "SVGD",
        by_index(backend),
        backend.adam(0.05),
        args=backend.arrays((X, Y)),
        estimator=backend.public.SVRG(3, "cyclic"),
        **options,
    )
    for step in range(8):
        assert ours.step(*alike[step % 4]) == pytest.approx(theirs.step(), rel=1e-9)
    np.testing.assert_allclose(ours.particles, theirs.particles, rtol=1e-9, atol=1e-9)


@full_data
def test_costs_are_sweeps_over_all_rows(backend: Any, full_data: str) -> None:
    target, _ = backend.target(by_argument(backend), batches(backend)[0])
    estimator = backend.public.SVRG(8, full_data=given(backend, full_data))
    assert estimator.evaluations_per_step(target) == 2.0 * BATCH / ROWS + 1 / 8


def test_keyword_arguments_reach_the_sweep(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any, sigma: float = 1.0) -> None:
        weights = host.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with host.plate("N", ROWS, subsample_size=len(x)):
            host.sample("y", dist.Normal(x @ weights, sigma), obs=y)

    alike, z = batches(backend), normal(1, 2, 3)
    target, _ = backend.target(model, alike[0])
    data, every = target.bind(*alike[0], sigma=2.0), target.bind(*backend.arrays((X, Y)), sigma=2.0)
    found = Estimation(backend, backend.public.SVRG(3, full_data=alike), target, data)
    expected = target.score(backend.array(z), every).score
    np.testing.assert_allclose(found.estimate(z).score, expected, rtol=1e-10)


def test_data_that_are_not_all_rows_are_refused(backend: Any) -> None:
    SVRG, (x, y), alike = backend.public.SVRG, backend.arrays((X, Y)), batches(backend)
    target, data = backend.target(by_argument(backend), alike[0])
    with pytest.raises(ArgumentError, match="Expected full_data with a model whose batches"):
        Estimation(backend, SVRG(3), target, data)
    with pytest.raises(ArgumentError, match=r"12\] in all, found 9"):
        Estimation(backend, SVRG(3, full_data=alike[:3]), target, data)
    with pytest.raises(ArgumentError, match="Expected no full_data"):
        drawn = backend.target(by_index(backend), (x, y))
        Estimation(backend, SVRG(3, full_data=(x, y)), *drawn)
    for wrong in (x, [], 3, [x, y]):
        with pytest.raises(ArgumentError, match="to be a tuple of the model's arguments"):
            SVRG(3, full_data=wrong)
    with pytest.raises(ArgumentError, match="leading axes"):
        SVRG(3, full_data=(1.0, "a"))
    with pytest.raises(ArgumentError, match=r"leading axes \[1, 12\]"):
        SVRG(3, full_data=(x, y[:1]))
    host, dist = backend.host, backend.dist

    def unscaled(x: Any, y: Any) -> None:
        weights = host.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with host.plate("N", len(x)):
            host.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    with pytest.raises(ArgumentError, match="scales its batches up to all rows"):
        Estimation(backend, SVRG(3, full_data=alike), *backend.target(unscaled, alike[0]))


def test_a_data_loader_gives_pyro_batches() -> None:
    """Lists of tensors, as torch's own loader has them."""
    torch = pytest.importorskip("torch")
    from tests.backends import backend_of

    backend = backend_of("pyro")
    rows = torch.utils.data.TensorDataset(*backend.arrays((X, Y)))
    loader = torch.utils.data.DataLoader(rows, batch_size=5)
    target, data = backend.target(by_argument(backend), batches(backend)[0])
    found = Estimation(backend, backend.public.SVRG(3, full_data=loader), target, data)
    z = normal(1, 2, 4)
    np.testing.assert_allclose(
        found.estimate(z).score, exact(backend, target, z).score, rtol=1e-7, atol=1e-7
    )
