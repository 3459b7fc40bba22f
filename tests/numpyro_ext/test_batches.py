"""Batches of a loader that one compiled loop takes together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.optim import Adam

import numpyro_ext as nx
from numpyro_ext.density import batches
from numpyro_ext.programs import Loop
from ppl_ext.batches.batch import Batch
from ppl_ext.errors import EvaluationWarning, NonFiniteError
from tests.backends import backend_of, use_float64
from tests.batches_support import ROWS, Again, X, Y, by_argument

use_float64()


def engine_of(**options: Any) -> nx.SVGD:
    return nx.SVGD(by_argument(backend_of("numpyro")), Adam(0.05), num_particles=3, **options)


def run(engine: nx.SVGD, steps: int, loader: Any, **options: Any) -> Any:
    options = {"start": "host", "progress_bar": False, **options}
    return engine.run(jax.random.key(0), steps, batches=loader, **options)


def test_a_block_holds_as_much_as_a_bound_says(monkeypatch: Any) -> None:
    batch = Batch((np.zeros((10, 4)), np.zeros(10)), {})
    assert batches.together(batch) == batches.MOST_TOGETHER
    monkeypatch.setattr(batches, "MOST_BYTES", 3 * 10 * 5 * 8 + 1)
    assert batches.together(batch) == 3
    assert all(isinstance(leaf, np.ndarray) for _, leaf in batches.placed(batch).leaves())
    monkeypatch.setattr(batches, "MOST_BYTES", 10 * 5 * 8 - 1)
    assert batches.together(batch) == 1
    assert all(isinstance(leaf, jax.Array) for _, leaf in batches.placed(batch).leaves())


def test_many_steps_take_few_calls(monkeypatch: Any) -> None:
    calls: list[int] = []
    call = Loop.__call__

    def counted(self: Loop, first: int, count: int, *args: Any, **options: Any) -> Any:
        calls.append(count)
        return call(self, first, count, *args, **options)

    monkeypatch.setattr(Loop, "__call__", counted)
    run(engine_of(), 600, Again(), keep_best=False)
    assert len(calls) < 200


@pytest.mark.parametrize("size", [8, 10])
def test_small_blocks_give_what_large_ones_do(monkeypatch: Any, size: int) -> None:
    """Blocks of one, which are not stacked, among them."""
    found = []
    for most in (1, 2, 128):
        monkeypatch.setattr(batches, "MOST_TOGETHER", most)
        found.append(run(engine_of(), 40, Again(size=size)))
    for each in found[1:]:
        np.testing.assert_allclose(each.losses, found[0].losses, rtol=1e-13)
        particles = each.state.algorithm, found[0].state.algorithm
        for ours, theirs in zip(*map(jax.tree.leaves, particles), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_what_is_the_same_for_all_batches_goes_to_each() -> None:
    def model(x: Any, y: Any, shift: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("N", ROWS, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(x @ w + shift, 1.0), obs=y)

    engine = nx.SVGD(model, Adam(0.05), num_particles=3)
    ours = run(engine, 20, Again(size=10), shift=np.array(0.7))
    theirs = run(engine_of(), 20, Again(size=10, y=Y - 0.7))
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-11)


def test_a_broken_step_in_the_midst_of_a_block_keeps_those_before_it() -> None:
    """And its state goes on with the batch that broke."""
    x = X.copy()
    x[40] = np.nan
    engine = engine_of()
    with pytest.raises(NonFiniteError, match="argument 'x'") as raised:
        run(engine, 30, Again(x=x))
    assert any("batch 5 of epoch 0 (rows 40 to 47 in" in note for note in raised.value.__notes__)
    assert not any("one of the" in note for note in raised.value.__notes__)
    assert int(raised.value.state.step) == 5
    whole = run(engine_of(), 12, Again())
    found = run(engine_of(), 7, Again(), init_state=raised.value.state, start=None)
    for ours, theirs in zip(
        jax.tree.leaves(found.state.algorithm), jax.tree.leaves(whole.state.algorithm), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_arguments_that_are_constants_come_one_by_one() -> None:
    def model(x: Any, y: Any) -> None:
        groups = len(np.unique(np.asarray(x) > 0.0))  # needs numbers
        w = numpyro.sample("w", dist.Normal(jnp.zeros(groups), 1.0).to_event(1))
        with numpyro.plate("N", ROWS, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def in_memory(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("N", ROWS, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    loader = Again(size=ROWS // 2)
    with pytest.warns(EvaluationWarning, match="held as constants"):
        ours = run(nx.SVGD(model, Adam(0.05), num_particles=3), 5, loader)
    theirs = run(nx.SVGD(in_memory, Adam(0.05), num_particles=3), 5, loader)
    assert np.ptp(theirs.losses) > 1.0
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-11)
