"""Engines of NumPyro: what compiled loops and states that are values have, and Pyro's do not.

The shell that both packages' engines share is tested in ``tests/test_engine.py``.
"""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import MCMC, NUTS

import numpyro_ext
from numpyro_ext.engine import EngineState
from numpyro_ext.optim import as_optimizer
from numpyro_ext.programs import Loop
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from tests.engine_support import bits_of as bits
from tests.engine_support import noisy_ascent, shell_of

KEY = random.key(0)
SHELL = shell_of("numpyro")
Y = SHELL.y
NoisyAscent = noisy_ascent("numpyro")


@pytest.fixture(scope="module")
def shared() -> Any:
    """One engine for the tests that do not need their own, so that it is compiled once."""
    return SHELL.make()


def run(e: Any, steps: int = 30, **options: Any) -> Any:
    return e.run(KEY, steps, Y, batch=8, progress_bar=False, **options)


def test_a_step_is_traced_once_for_runs_and_single_steps() -> None:
    e = SHELL.make()
    first = run(e, 5)
    run(e, 50, callback=lambda i, state, info: None, callback_every=7)
    run(e, 9, init_state=first.state)
    e.run(random.key(5), 3, Y + 1.0, batch=8, progress_bar=False)
    state, _ = e.update(first.state, Y, batch=8)
    e.update(state, Y.copy(), batch=8)
    assert e.traces == 1


def test_a_copy_of_an_engine_goes_on_alike() -> None:
    def model() -> None:
        numpyro.sample("z", dist.Normal(0.0, 1.0))

    e = numpyro_ext.SVGD(model, optax.adam(0.1), num_particles=3)
    state, _ = e.update(e.init(KEY))
    twin = copy.deepcopy(e)
    options = {"init_state": state, "progress_bar": False}
    assert bits(twin.update(state)) == bits(e.update(state))
    assert bits(twin.run(KEY, 2, **options).state) == bits(e.run(KEY, 2, **options).state)


def test_a_run_that_goes_on_with_the_optimised_program_is_cut_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Loop, "switch", lambda self, *args: 10)
    e = SHELL.make()
    whole = run(e, 20)
    assert len(whole.losses) == 20 and int(whole.state.step) == 20
    seen: list[int] = []
    called = run(e, 20, callback=lambda i, state, info: seen.append(i), callback_every=8)
    assert seen == [8, 16, 20]
    for first in (4, 10, 13):
        half = run(e, first)
        rest = run(e, 20 - first, init_state=half.state)
        assert bits(rest.state) == bits(called.state) == bits(whole.state)
        losses = np.concatenate([half.losses, rest.losses])
        np.testing.assert_array_equal(losses, whole.losses)
    assert e.traces == 1


def test_steps_inside_jit_follow_those_outside(shared: Any) -> None:
    def step(state: EngineState, y: Any) -> Any:
        return shared.update(state, y, batch=8)

    inside, state = jax.jit(step), shared.init(KEY, Y, batch=8)
    other = state
    for _ in range(10):
        (state, loss), (other, expected) = inside(state, Y), step(other, Y)
        # Not to the bit: two programs may round differently.
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
    assert int(state.step) == 10


def test_a_step_inside_jit_that_is_not_finite_keeps_the_state() -> None:
    e = SHELL.make(breaks_at=0)
    state = e.init(KEY, Y, batch=8)
    after, loss = jax.jit(lambda s: e.update(s, Y, batch=8))(state)
    assert bits(after.algorithm) == bits(state.algorithm)
    assert int(after.skipped) == 1 and np.isnan(loss)


def test_runs_with_keys_of_the_old_kind_are_resumed(tmp_path: Path) -> None:
    key, path = random.PRNGKey(0), tmp_path / "state"
    e = SHELL.make()
    whole = e.run(key, 8, Y, batch=8, progress_bar=False)
    e.save(path, e.run(key, 5, Y, batch=8, progress_bar=False).state)
    rest = run(e, 3, init_state=SHELL.make().load(path, Y, batch=8))
    assert bits(rest.state) == bits(whole.state)


def test_a_state_given_to_a_run_stays_usable(shared: Any) -> None:
    e = shared
    state = e.init(KEY, Y, batch=8)
    before = bits(state)
    kept: list[EngineState] = []
    first = run(
        e, 6, init_state=state, callback=lambda i, s, info: kept.append(s), callback_every=2
    )
    second = run(e, 6, init_state=state)
    assert bits(state) == before
    assert bits(first.state) == bits(second.state)
    assert [int(s.step) for s in kept] == [2, 4, 6]
    assert bits(run(e, 4, init_state=kept[0]).state) != before


def test_held_parameters_are_saved_with_the_state(tmp_path: Path) -> None:
    def with_param(y: jax.Array) -> None:
        shift = numpyro.param("shift", lambda key: random.normal(key))
        mean = numpyro.sample("mean", dist.Normal(shift, 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0).expand([40]).to_event(1), obs=y)

    path = tmp_path / "state.npz"
    first = NoisyAscent(with_param, numpyro.optim.Adam(0.05))
    with pytest.warns(HeldParameterWarning, match="shift"):
        whole = first.run(KEY, 20, Y, progress_bar=False)
    with pytest.warns(HeldParameterWarning, match="shift"):
        half = first.run(KEY, 10, Y, progress_bar=False)
    first.save(path, half.state)
    second = NoisyAscent(with_param, numpyro.optim.Adam(0.05))
    with pytest.warns(HeldParameterWarning, match="shift"):
        # Another key draws another shift, which the saved one must replace.
        second.init(random.key(8), Y)
    other = np.asarray(second.target.held["shift"])
    state = second.load(path)
    assert second.target.held["shift"] != other
    rest = second.run(KEY, 10, Y, progress_bar=False, init_state=state)
    assert bits(rest.state) == bits(whole.state)


def test_optimizers_of_both_libraries_are_accepted() -> None:
    assert isinstance(as_optimizer(optax.sgd(0.1)), numpyro.optim._NumPyroOptim)
    adam = numpyro.optim.Adam(0.1)
    assert as_optimizer(adam) is adam


def test_keys_and_states_are_checked(shared: Any) -> None:
    with pytest.raises(RuntimeError, match="has not seen"):
        SHELL.make().update(None, Y)
    with pytest.raises(ArgumentError, match="rng_key"):
        shared.init(0, Y)
    with pytest.raises(ArgumentError, match="EngineState"):
        run(shared, 3, init_state={"z": 1})


def test_states_of_other_engines_are_refused_as_init_state(tmp_path: Path) -> None:
    def one(prior: Any, number: int = 3, name: str = "z") -> Any:
        return numpyro_ext.SVGD(
            lambda: numpyro.sample(name, prior), optax.adam(0.1), num_particles=number
        )

    normal = dist.Normal(0.0, 1.0)
    state = one(normal).init(KEY)
    for other in (one(dist.HalfNormal(1.0)), one(normal, 4), one(normal, name="x"), SHELL.make()):
        given = SHELL.args if other.model == SHELL.model else ()
        for has_met in (False, True):
            if has_met:
                other.init(KEY, *given)
            with pytest.raises(ArgumentError, match="Expected a state of this"):
                other.run(KEY, 2, *given, init_state=state, progress_bar=False)
        with pytest.raises(ArgumentError, match="Expected a state of this"):
            other.save(tmp_path / "state", state)
    again = one(normal)
    result = again.run(KEY, 2, init_state=state, progress_bar=False)
    for wrong in (None, result, result.params):
        with pytest.raises(ArgumentError, match="Expected an EngineState"):
            again.save(tmp_path / "state", wrong)
    assert not list(tmp_path.iterdir())


def test_programs_of_another_engine_serve_only_what_they_compute() -> None:
    """The next engine finds the compiled steps of the last, unless something differs in them."""

    def closed_over(shift: float) -> Any:
        data = jnp.asarray(Y) + shift

        def program() -> None:
            mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(mean, 1.0).expand([40]).to_event(1), obs=data)

        return program

    def losses(shift: float = 0.0, rate: float = 0.05, **options: Any) -> np.ndarray:
        e = NoisyAscent(closed_over(shift), numpyro.optim.Adam(rate), **options)
        return e.run(KEY, 4, progress_bar=False).losses

    first = losses()
    np.testing.assert_array_equal(losses(), first)
    for other in (losses(shift=1.0), losses(rate=0.5), losses(likelihood_temperature=0.1)):
        assert np.abs(other[1:] - first[1:]).max() > 1e-4


@pytest.mark.parametrize("name", ["LaplaceGGN", "SVGD"])
def test_a_result_is_looked_at_with_the_arguments_of_its_run(name: str) -> None:
    """The engine has seen others since: a hundred rows are known five times as well as four."""

    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    many, few = jnp.linspace(-1.0, 1.0, 100), 3.0 + jnp.linspace(-1.0, 1.0, 4)
    options = {"num_particles": 20} if name == "SVGD" else {}
    engine = getattr(numpyro_ext, name)(model, numpyro.optim.Adam(0.05), **options)
    result = engine.run(KEY, 200, many, progress_bar=False)
    discrepancy = numpyro_ext.ksd(engine, result).value
    deviations = [float(result["mean"].std())]
    later = engine.run(KEY, 200, few, progress_bar=False)
    deviations += [
        float(result["mean"].std()),
        float(numpyro_ext.to_arviz(engine, result, many).posterior["mean"].std()),
    ]
    assert deviations == pytest.approx([deviations[0]] * 3)
    assert deviations[0] == pytest.approx(0.1, rel=0.15)
    assert float(later["mean"].std()) == pytest.approx(0.5, rel=0.15)
    assert numpyro_ext.ksd(engine, result).value == pytest.approx(discrepancy)
    # Without arguments rows are those of the run too, and draws may be asked for in other ways.
    assert numpyro_ext.to_arviz(engine, result).observed_data["y"].shape == (100,)
    predicted = numpyro_ext.predictive_distribution(model, engine, few, state=result)
    assert float(predicted["mean"].std("draw").mean()) == pytest.approx(deviations[0], rel=0.1)
    assert len(engine.data.args[0]) == 4
    if name == "LaplaceGGN":
        evidence = numpyro_ext.elbo(engine, result).value
        given = numpyro_ext.elbo(engine, result, args=(many,)).value
        assert evidence == pytest.approx(given, rel=1e-4)
        # What is asked for by name counts.
        engine.fit_curvature(result.state, few)
        assert float(result["mean"].std()) == pytest.approx(0.5, rel=0.15)


def test_results_in_threads_leave_their_engine_as_it_is() -> None:
    """Two look at an earlier result while a third draws by the last arguments."""
    model, many, few = numpyro_ext.LaplaceGGN, jnp.zeros(400), jnp.ones(4)

    def normal(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    engine = model(normal, numpyro.optim.Adam(0.1))
    first, last = (engine.run(KEY, 50, rows, progress_bar=False) for rows in (few, many))

    def deviation(found: Any) -> float:
        return float(engine.get_samples(found, num_samples=500)["mean"].std())

    def look(found: Any, seen: list[float]) -> None:
        seen += [deviation(found) for _ in range(40)]

    figures: list[list[float]] = [[], [], []]
    looking = [
        threading.Thread(target=look, args=(found, seen))
        for found, seen in zip((first, first, last.state), figures, strict=True)
    ]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    for seen, expected in zip(figures, (0.5, 0.5, 0.05), strict=True):
        np.testing.assert_allclose(seen, [expected] * 40, rtol=0.15)
    assert len(engine.data.args[0]) == 400


def test_a_result_belongs_to_its_engine_after_an_argument_has_changed() -> None:
    def model(y: Any, top: float) -> None:
        scale = numpyro.sample("scale", dist.Uniform(0.0, top))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(scale, 1.0), obs=y)

    engine = numpyro_ext.SVGD(model, numpyro.optim.Adam(0.05), num_particles=10)
    rows = jnp.full(50, 0.5)
    result = engine.run(KEY, 20, rows, 1.0, progress_bar=False)
    engine.run(KEY, 20, 100.0 * rows, 100.0, progress_bar=False)
    assert float(result["scale"].max()) < 1.0
    assert float(numpyro_ext.to_arviz(engine, result, rows, 1.0).posterior["scale"].max()) < 1.0
    found = numpyro_ext.check(KEY, (engine, result), model, rows, 1.0, progress_bar=False)
    assert found.level


def test_chains_of_programs_with_discrete_sites_have_no_deterministic_ones() -> None:
    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        with numpyro.plate("rows", len(y)):
            far = numpyro.sample("far", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            numpyro.deterministic("shift", 2.0 * far)
            numpyro.sample("y", dist.Normal(mean + 2.0 * far, 1.0), obs=y)

    run = MCMC(numpyro_ext.SGLD(model, 0.001), num_warmup=5, num_samples=5, progress_bar=False)
    run.run(KEY, jnp.asarray(Y))
    assert run.get_samples().keys() == {"mean"}


@pytest.mark.filterwarnings("ignore::ppl_ext.errors.DoubtfulFitWarning")
@pytest.mark.parametrize("reads_rows", [False, True])
def test_draws_of_chains_have_deterministic_sites_as_nuts_does(reads_rows: bool) -> None:
    """But for those of a few rows of a plate, which are others at each draw."""

    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        scale = numpyro.deterministic("square", mean**2)
        numpyro.deterministic("three", 3.0)
        numpyro.deterministic("shifted", mean + y)
        with numpyro.plate("rows", len(y), subsample_size=3 if reads_rows else None) as rows:
            some = mean * y[rows]
            own = numpyro.deterministic("own", scale * y[rows])
            numpyro.sample("y", dist.Normal(mean, 1.0 + 0.0 * own), obs=y[rows])
        numpyro.deterministic("of rows", some.mean())

    runs = [
        MCMC(kernel, num_warmup=20, num_samples=10, progress_bar=False)
        for kernel in (numpyro_ext.SGLD(model, 0.01), NUTS(model))
    ]
    if reads_rows:
        del runs[1]  # NUTS refuses them
    for run in runs:
        run.run(KEY, jnp.asarray(Y))
    found, *others = (run.get_samples() for run in runs)
    expected = {"mean", "square", "three", "shifted"}
    expected |= set() if reads_rows else {"own", "of rows"}
    assert found.keys() == expected
    for other in others:
        assert {n: v.shape for n, v in found.items()} == {n: v.shape for n, v in other.items()}
    np.testing.assert_allclose(found["square"], found["mean"] ** 2, rtol=1e-6)
    np.testing.assert_allclose(found["shifted"], found["mean"][:, None] + Y, rtol=1e-6)
