"""The engine shell, by a tiny engine: loops, resuming, broken steps, saving, retracing."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random

from numpyro_ext.density import Data
from numpyro_ext.engine import Engine, EngineState, Plan, as_optimizer
from numpyro_ext.gradients import Full, Minibatch
from ppl_ext.errors import ArgumentError, HeldParameterWarning, NonFiniteError

KEY = random.key(0)
Y = np.random.default_rng(0).normal(size=40)


def model(y: jax.Array, batch: int | None = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(mean, scale), obs=y[rows])


class Memory(NamedTuple):
    """Leaves of many kinds: optimizer state, both sorts of keys, half precision."""

    optimizer: Any
    typed_key: jax.Array
    raw_key: jax.Array
    half: jax.Array


class NoisyAscent(Engine):
    """Gradient ascent of a few points with a little noise from the state's key."""

    def __init__(self, *args: Any, num: int = 3, breaks_at: int = -1, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num, self.breaks_at, self.traces = num, breaks_at, 0

    def _start(self, plan: Plan, rng_key: jax.Array, data: Data) -> Any:
        return plan.target.initial_positions(self.num, rng_key, data), rng_key

    def _init_algorithm(self, plan: Plan, start: Any, data: Data) -> Memory:
        positions, rng_key = start
        return Memory(
            self.optim.init(positions), rng_key, random.PRNGKey(3), jnp.ones(2, jnp.bfloat16)
        )

    def _num_positions(self, plan: Plan) -> int:
        return self.num

    def _step(
        self, plan: Plan, state: EngineState, data: Data
    ) -> tuple[EngineState, jax.Array, dict[str, jax.Array]]:
        self.traces += 1
        memory: Memory = state.algorithm
        positions = self.optim.get_params(memory.optimizer)
        score, estimator = plan.estimator.estimate(plan.target, state.estimator, positions, data)
        rng_key, key = random.split(state.rng_key)
        noise = 0.1 * random.normal(key, positions.shape)
        loss = -(score.log_prior + score.log_likelihood).mean()
        direction = jnp.where(state.step == self.breaks_at, jnp.nan, 1.0) * (score.score + noise)
        optimizer = self.optim.update(-direction, memory.optimizer, value=loss)
        memory = memory._replace(
            optimizer=optimizer,
            typed_key=random.split(memory.typed_key)[0],
            half=memory.half * jnp.bfloat16(0.99),
        )
        info = {"norm": jnp.linalg.norm(score.score), "horizon": state.horizon}
        state = state._replace(algorithm=memory, estimator=estimator, rng_key=rng_key)
        return state, loss, info

    def _get_params(self, plan: Plan, state: EngineState, data: Data) -> dict[str, jax.Array]:
        return {"positions": self.optim.get_params(state.algorithm.optimizer)}

    def _draw(
        self,
        plan: Plan,
        state: EngineState,
        rng_key: jax.Array | None,
        num_samples: int | None,
    ) -> jax.Array:
        return self.optim.get_params(state.algorithm.optimizer)


def engine(**options: Any) -> NoisyAscent:
    return NoisyAscent(model, numpyro.optim.Adam(0.05), **options)


@pytest.fixture(scope="module")
def shared() -> NoisyAscent:
    """One engine for the tests that do not need their own, so that it is compiled once."""
    return engine()


def bits(tree: Any) -> list[bytes]:
    leaves = [
        random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def run(e: NoisyAscent, steps: int = 30, **options: Any) -> Any:
    return e.run(KEY, steps, Y, batch=8, progress_bar=False, **options)


def test_result_of_a_run(shared: NoisyAscent) -> None:
    e = shared
    result = run(e, 400)
    assert result.losses.shape == (400,) and result.info["norm"].shape == (400,)
    assert np.isfinite(result.losses).all()
    assert int(result.state.step) == 400 and int(result.state.skipped) == 0
    assert set(result.info["horizon"]) == {400}
    draws = e.get_samples(result.state)
    assert draws["mean"].shape == (3,)
    # The mode is near the data's moments; noise and minibatches leave a spread of about 0.2.
    assert np.abs(np.asarray(draws["mean"]) - Y.mean()).max() < 0.5
    assert np.abs(np.log(np.asarray(draws["scale"]) / Y.std())).max() < 0.5
    np.testing.assert_array_equal(
        e.get_params(result.state)["positions"], result.params["positions"]
    )


def test_nothing_is_traced_again_after_the_first_step() -> None:
    e = engine()
    first = run(e, 5)
    assert e.traces == 1
    run(e, 50, callback=lambda i, state, info: None, callback_every=7)
    run(e, 9, init_state=first.state)
    e.run(random.key(5), 3, Y + 1.0, batch=8, progress_bar=False)
    assert e.traces == 1
    state, _ = e.update(first.state, Y, batch=8)
    e.update(state, Y.copy(), batch=8)
    assert e.traces == 1


@pytest.mark.parametrize("every", [1, 7, 30])
def test_a_run_is_the_same_to_the_bit_however_it_is_cut(
    shared: NoisyAscent, every: int, tmp_path: Path
) -> None:
    e = shared
    plain = run(e)
    seen: list[int] = []
    cut = run(
        e,
        callback=lambda i, state, info: seen.append(i),
        callback_every=every,
        checkpoint=tmp_path / "state.npz",
        checkpoint_every=4,
    )
    assert seen == sorted({*range(every, 31, every), 30})
    assert bits(cut.state) == bits(plain.state)
    np.testing.assert_array_equal(cut.losses, plain.losses)
    with_bar = e.run(KEY, 30, Y, batch=8)
    assert bits(with_bar.state) == bits(plain.state)


def test_steps_by_update_follow_the_run(shared: NoisyAscent) -> None:
    e = shared
    state = e.init(KEY, Y, batch=8)
    losses = []
    for _ in range(10):
        state, loss = e.update(state, Y, batch=8)
        losses.append(float(loss))
    result = run(e, 10)
    # Not to the bit: two programs may round differently.
    np.testing.assert_allclose(losses, result.losses, rtol=1e-4)
    jitted = jax.jit(lambda state, y: e.update(state, y, batch=8))
    state = e.init(KEY, Y, batch=8)
    inside = []
    for _ in range(10):
        state, loss = jitted(state, Y)
        inside.append(float(loss))
    np.testing.assert_allclose(inside, losses, rtol=1e-4)
    assert int(state.step) == 10


class Killed(Exception):
    """Stands for the end of a process."""


@pytest.mark.parametrize("optimizer", ["numpyro", "optax"])
@pytest.mark.parametrize("key", [random.key(0), random.PRNGKey(0)], ids=["typed", "raw"])
def test_a_killed_run_resumed_ends_bit_identical(
    optimizer: str, key: jax.Array, tmp_path: Path
) -> None:
    def make() -> NoisyAscent:
        optim = numpyro.optim.ClippedAdam(0.05) if optimizer == "numpyro" else optax.adam(0.05)
        return NoisyAscent(model, optim)

    path = tmp_path / "state.npz"
    whole = make().run(key, 30, Y, batch=8, progress_bar=False)

    def kill(i: int, state: EngineState, info: Mapping[str, float]) -> None:
        if i == 18:
            raise Killed

    options: dict[str, Any] = {"checkpoint": path, "checkpoint_every": 5, "callback_every": 6}
    with pytest.raises(Killed):
        make().run(key, 30, Y, batch=8, progress_bar=False, callback=kill, **options)
    assert os.listdir(tmp_path) == ["state.npz"]
    # A new engine, as after a restart; nothing of the old one is left but the file.
    fresh = make()
    state = fresh.load(path, Y, batch=8)
    assert int(state.step) == 15
    rest = fresh.run(random.key(99), 30 - 15, Y, batch=8, progress_bar=False, init_state=state)
    assert bits(rest.state) == bits(whole.state)
    np.testing.assert_array_equal(rest.losses, whole.losses[15:])
    assert set(rest.info["horizon"]) == {30}


def test_a_state_given_to_a_run_stays_usable(shared: NoisyAscent) -> None:
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


def test_callback_sees_the_run_and_may_stop_it(shared: NoisyAscent, tmp_path: Path) -> None:
    e = shared
    plain = run(e)
    seen: dict[int, float] = {}

    def stop(i: int, state: EngineState, info: Mapping[str, float]) -> bool:
        assert int(state.step) == i
        seen[i] = info["loss"]
        return i >= 12

    path = tmp_path / "state.npz"
    result = run(e, callback=stop, callback_every=4, checkpoint=path)
    assert result.losses.shape == (12,) and list(seen) == [4, 8, 12]
    for i, loss in seen.items():
        assert loss == pytest.approx(plain.losses[i - 1])
    np.testing.assert_array_equal(result.losses, plain.losses[:12])
    assert int(e.load(path).step) == 12


def test_default_callback_interval_is_a_hundredth(shared: NoisyAscent) -> None:
    seen: list[int] = []
    run(shared, 250, callback=lambda i, state, info: seen.append(i))
    assert seen == sorted({*range(3, 250, 3), 250})


def test_broken_step_raises_with_the_state_before_it(shared: NoisyAscent, tmp_path: Path) -> None:
    e = engine(breaks_at=10)
    path = tmp_path / "state.npz"
    with pytest.raises(NonFiniteError, match="step 11 of NoisyAscent") as raised:
        run(e, checkpoint=path, checkpoint_every=30)
    assert raised.value.step == 11
    state = raised.value.state
    assert int(state.step) == 10 and int(state.skipped) == 0
    assert bits(state.algorithm) == bits(run(e, 10).state.algorithm)
    assert bits(e.load(path)) == bits(state)
    # From there a run goes on as if nothing had been.
    whole = run(shared)
    assert bits(run(shared, 20, init_state=state).state) == bits(whole.state)
    with pytest.raises(NonFiniteError) as raised:
        e.update(state, Y, batch=8)
    assert raised.value.state is state


def test_broken_step_can_be_skipped() -> None:
    e = engine(breaks_at=10, on_nonfinite="skip")
    result = run(e)
    assert int(result.state.step) == 30 and int(result.state.skipped) == 1
    assert np.flatnonzero(np.isnan(result.losses)).tolist() == [10]
    assert all(np.isfinite(np.asarray(p)).all() for p in result.params.values())
    before = run(e, 10).state
    after, loss = e.update(before, Y, batch=8)
    assert bits(after.algorithm) == bits(before.algorithm) and np.isnan(loss)
    # The next minibatch and key are new.
    assert bits(after.rng_key) != bits(before.rng_key)
    assert bits(after.estimator) != bits(before.estimator)


def test_jitted_update_keeps_the_state_of_a_broken_step() -> None:
    e = engine(breaks_at=0)
    state = e.init(KEY, Y, batch=8)
    after, loss = jax.jit(lambda s: e.update(s, Y, batch=8))(state)
    assert bits(after.algorithm) == bits(state.algorithm)
    assert int(after.skipped) == 1 and np.isnan(loss)


def test_progress_bar_shows_loss_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    e = engine(breaks_at=3, on_nonfinite="skip")
    e.run(KEY, 20, Y, batch=8)
    shown = capsys.readouterr().err
    assert "NoisyAscent" in shown and "20/20" in shown
    assert "loss=" in shown and "norm=" in shown and "skipped=1" in shown
    assert "it/s" in shown or "s/it" in shown
    run(e, 5)
    assert capsys.readouterr().err == ""


def test_saved_states_are_checked(shared: NoisyAscent, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    e = shared
    result = run(e, 3)
    e.save(path, result.state)
    assert bits(e.load(path)) == bits(result.state)

    class Other(NoisyAscent):
        pass

    def renamed(y: jax.Array, batch: int | None = None) -> None:
        location = numpyro.sample("location", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", len(y), subsample_size=batch) as rows:
            numpyro.sample("y", dist.Normal(location, 1.0), obs=y[rows])

    faults = {
        "state of Other": Other(model, numpyro.optim.Adam(0.1)),
        "another model": NoisyAscent(renamed, numpyro.optim.Adam(0.1)),
        r"does not fit this engine: .*\[3,2\]": engine(num=4),
        "does not fit this engine: expected .* found": NoisyAscent(model, numpyro.optim.SGD(0.1)),
        r"another estimator: expected Full\(\), found Minibatch": engine(estimator=Full()),
    }
    for words, other in faults.items():
        with pytest.raises(ArgumentError, match=words):
            other.load(path, Y, batch=8)
    np.savez(tmp_path / "foreign.npz", a=np.ones(2))
    with pytest.raises(ArgumentError, match="saved by an engine"):
        e.load(tmp_path / "foreign.npz")
    with pytest.raises(ArgumentError, match="missing a required argument"):
        engine().load(path)


def test_files_that_are_no_saved_states_are_named(shared: NoisyAscent, tmp_path: Path) -> None:
    run(shared, 1)
    contents = {
        "notes.txt": b"not an array\n",
        "empty.npz": b"",
        "cut.npz": b"PK\x03\x04 and no more",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "header.npz", header=np.frombuffer(b"[1]", np.uint8))
    with zipfile.ZipFile(tmp_path / "archive.pt", "w") as archive:  # as torch.save writes them
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    for name in (*contents, "array.npy", "header.npz", "archive.pt"):
        with pytest.raises(ArgumentError, match=f"saved by an engine; .*{name} is not one"):
            shared.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        shared.load(tmp_path / "nowhere.npz")


def test_saved_states_belong_to_their_settings(tmp_path: Path) -> None:
    class Named(NoisyAscent):
        flavour = "plain"

        def _settings(self) -> dict[str, str]:
            return {"flavour": self.flavour}

    first = Named(model, numpyro.optim.Adam(0.05))
    path = tmp_path / "state.npz"
    first.save(path, first.init(KEY, Y, batch=8))
    assert int(first.load(path).step) == 0
    first.flavour = "salted"
    with pytest.raises(ArgumentError, match="another flavour: expected salted, found plain"):
        first.load(path)


def test_a_failed_save_leaves_the_old_file(
    shared: NoisyAscent, tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "state.npz"
    e = shared
    result = run(e, 3)
    e.save(path, result.state)
    before = path.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        e.save(path, run(e, 5).state)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.npz"]


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
    for wrong in (numpyro.optim.Minimize(), 0.1, "adam"):
        with pytest.raises(ArgumentError, match="optax|optim must be"):
            as_optimizer(wrong)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="on_nonfinite"):
        engine(on_nonfinite="ignore")
    with pytest.raises(ArgumentError, match="GradientEstimator"):
        engine(estimator="full")
    e = engine()
    with pytest.raises(RuntimeError, match="has not seen"):
        _ = e.target
    with pytest.raises(RuntimeError, match="has not seen"):
        e.update(None, Y)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="rng_key"):
        e.init(0, Y)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"model\(y"):
        e.init(KEY, Y, bacth=8)
    with pytest.raises(ArgumentError, match="num_steps"):
        run(e, -1)
    with pytest.raises(ArgumentError, match="checkpoint_every"):
        run(e, 3, checkpoint_every=0)
    with pytest.raises(ArgumentError, match="EngineState"):
        run(e, 3, init_state={"z": 1})
    empty = run(e, 0)
    assert empty.losses.shape == (0,) and int(empty.state.step) == 0


def test_estimator_is_the_default_for_the_model_unless_given() -> None:
    e = engine()
    e.init(KEY, Y, batch=8)
    assert e.plan.estimator == Minibatch()
    e.init(KEY, Y)
    assert e.plan.estimator == Full()
    given = engine(estimator=Minibatch(sampling="replacement"))
    given.init(KEY, Y, batch=8)
    assert given.plan.estimator == Minibatch(sampling="replacement")


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
