"""The shell of the engines, by a small engine: loops, resuming, broken steps, saving, refusals.

What every public engine keeps to besides stands in ``test_contracts.py``, and what only compiled
loops and their states have in ``numpyro_ext/test_engine.py``.
"""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError, ModelCheckError, NonFiniteError
from ppl_ext.running import run, state_files
from tests.engine_support import Shell, shell_of


@pytest.fixture
def shell(backend: Any) -> Shell:
    return shell_of(backend.name)


def plain_of(shell: Shell) -> Any:
    """An engine for the tests that do not need their own, compiled once."""
    return shell.make() if shell.is_pyro else _kept(shell.backend.name)


@functools.cache
def _kept(package: str) -> Any:
    return shell_of(package).make()


def test_a_run_in_many_pieces_keeps_the_figures_of_its_steps_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the memory of the longest piece for each of them, which is gigabytes in long runs."""
    joined, seen = run.joined, []

    def listen(pieces: list[run.Piece]) -> run.Piece:
        seen.extend(pieces)
        return joined(pieces)

    monkeypatch.setattr(run, "joined", listen)
    shell.run(plain_of(shell), 6, callback=lambda *_: None, callback_every=2)
    assert len(seen) >= 3
    for piece in seen:
        for values in (piece.losses, *piece.info.values()):
            whole = values if values.base is None else values.base
            assert whole.nbytes == values.nbytes


def test_result_of_a_run(shell: Shell) -> None:
    engine = plain_of(shell)
    state, result = shell.run(engine, 400)
    assert result.losses.shape == (400,) and result.info["norm"].shape == (400,)
    assert np.isfinite(result.losses).all()
    assert shell.taken(engine, state) == 400 and shell.skipped(engine, state) == 0
    assert set(result.info["horizon"]) == {400}
    draws = shell.samples(engine, state)
    # The mode is near the data's moments; noise and minibatches leave a spread of about 0.2.
    assert draws["mean"].shape == (3,)
    assert np.abs(draws["mean"] - shell.y.mean()).max() < 0.5
    assert np.abs(np.log(draws["scale"] / shell.y.std())).max() < 0.5
    # They are what the host's own takes.
    backend = shell.backend
    predictive = backend.host.infer.Predictive(shell.model, posterior_samples=backend.arrays(draws))
    keys = () if shell.is_pyro else (backend.key(),)
    assert predictive(*keys, *shell.args, batch=8)["y"].shape == (3, 8)
    if shell.is_pyro:
        assert engine.gradient_evaluations == pytest.approx(400 * 3 * 8 / 40)
    else:
        np.testing.assert_array_equal(
            engine.get_params(state)["positions"], result.params["positions"]
        )


@pytest.mark.parametrize("every", [1, 7, 30])
def test_a_run_is_the_same_to_the_bit_however_it_is_cut(
    shell: Shell, every: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    options = {
        "callback": lambda i, state, info: seen.append(i),
        "callback_every": every,
        "checkpoint": tmp_path / "state",
        "checkpoint_every": 4,
    }
    found = []
    for each in ({}, options, {"progress_bar": True}):
        engine = plain_of(shell)
        state, result = shell.run(engine, 30, **each)
        found.append((shell.bits(engine, state), result.losses))
    assert seen == sorted({*range(every, 31, every), 30})
    for bits, losses in found[1:]:
        assert bits == found[0][0]
        np.testing.assert_array_equal(losses, found[0][1])


def test_callbacks_come_each_hundredth_and_checkpoints_each_tenth(
    shell: Shell, tmp_path: Path
) -> None:
    path, files = tmp_path / "state", []

    def note(step: int, *_: Any) -> None:
        # A file in another's place is another file, also where clocks are coarse.
        files.append((step, path.stat().st_ino if path.exists() else None))

    shell.run(plain_of(shell), 200, callback=note, checkpoint=path)
    assert [step for step, _ in files] == list(range(2, 201, 2))
    saved = [
        step for (step, now), (_, before) in zip(files[1:], files, strict=False) if now != before
    ]
    assert saved == list(range(20, 201, 20))


def test_single_steps_follow_the_run(shell: Shell) -> None:
    engine = plain_of(shell)
    state, losses = shell.start(engine), []
    for _ in range(10):
        state, loss = shell.step(engine, state)
        losses.append(float(loss))
    _, result = shell.run(plain_of(shell), 10)
    # Two programs of JAX may round differently.
    np.testing.assert_allclose(losses, result.losses, rtol=0.0 if shell.is_pyro else 1e-4)


class Killed(Exception):
    """Stands for the end of a process."""


def optimizer(shell: Shell, name: str) -> Any:
    """One of the host's, one of the framework's, and one with a schedule."""
    if shell.is_pyro:
        import torch
        from pyro.optim import ClippedAdam, ExponentialLR

        scheduled = {"optimizer": torch.optim.SGD, "optim_args": {"lr": 0.01}, "gamma": 0.9}
        return {
            "host": ClippedAdam({"lr": 0.1, "lrd": 0.99}),
            "framework": functools.partial(torch.optim.Adam, lr=0.1),
            "scheduled": ExponentialLR(scheduled),
        }[name]
    import optax

    return {
        "host": shell.backend.host.optim.ClippedAdam(0.05),
        "framework": optax.adam(0.05),
        "scheduled": optax.sgd(optax.exponential_decay(0.01, 1, 0.9)),
    }[name]


@pytest.mark.parametrize("name", ["host", "framework", "scheduled"])
def test_a_killed_run_resumed_ends_bit_identical(shell: Shell, name: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    whole = shell.make(optimizer(shell, name))
    end, result = shell.run(whole, 30)

    def kill(i: int, state: Any, info: Mapping[str, float]) -> None:
        if i == 18:
            raise Killed

    options = {"checkpoint": path, "checkpoint_every": 5, "callback_every": 6, "callback": kill}
    with pytest.raises(Killed):
        shell.run(shell.make(optimizer(shell, name)), 30, **options)
    assert os.listdir(tmp_path) == ["state"]
    # A new engine, as after a restart; nothing of the old one is left but the file.
    fresh = shell.make(optimizer(shell, name), seed=999)
    if shell.is_pyro:
        fresh.load(path)
        # Counts are there before the arguments are.
        assert fresh.num_steps_taken == 15 and fresh.losses == whole.losses[:15]
    state = shell.load(fresh, path)
    assert shell.taken(fresh, state) == 15
    state, rest = shell.run(fresh, 30 - 15, state)
    assert shell.taken(fresh, state) == 30
    assert shell.bits(fresh, state) == shell.bits(whole, end)
    np.testing.assert_array_equal(rest.losses, result.losses[15:])
    assert set(rest.info["horizon"]) == {30}
    if shell.is_pyro:
        assert fresh.losses == whole.losses
        assert fresh.gradient_evaluations == whole.gradient_evaluations


def test_callback_sees_the_run_and_may_stop_it(shell: Shell, tmp_path: Path) -> None:
    _, plain = shell.run(plain_of(shell), 30)
    seen: dict[int, float] = {}
    engine, path = plain_of(shell), tmp_path / "state"

    def stop(i: int, engine_or_state: Any, info: Mapping[str, float]) -> bool:
        assert shell.taken(engine, engine_or_state) == i
        seen[i] = info["loss"]
        return i >= 12

    _, result = shell.run(engine, 30, callback=stop, callback_every=4, checkpoint=path)
    assert result.losses.shape == (12,) and list(seen) == [4, 8, 12]
    for i, loss in seen.items():
        assert loss == pytest.approx(plain.losses[i - 1])
    np.testing.assert_array_equal(result.losses, plain.losses[:12])
    other = plain_of(shell)
    assert shell.taken(other, shell.load(other, path)) == 12


def test_default_callback_interval_is_a_hundredth(shell: Shell) -> None:
    seen: list[int] = []
    shell.run(plain_of(shell), 250, callback=lambda i, state, info: seen.append(i))
    assert seen == sorted({*range(3, 250, 3), 250})


def test_a_broken_step_ends_the_run_with_the_state_before_it(shell: Shell, tmp_path: Path) -> None:
    engine, path = shell.make(breaks_at=10), tmp_path / "state"
    with pytest.raises(NonFiniteError, match="step 11 of NoisyAscent.*learning rate") as raised:
        shell.run(engine, 30, checkpoint=path, checkpoint_every=30)
    assert raised.value.step == 11
    state = raised.value.state
    assert shell.taken(engine, state) == 10 and shell.skipped(engine, state) == 0
    before = shell.bits(engine, state)
    short = shell.make(breaks_at=10)
    assert shell.bits(short, shell.run(short, 10)[0]) == before
    loaded = plain_of(shell)
    saved = shell.load(loaded, path)
    assert shell.bits(loaded, saved) == before
    with pytest.raises(NonFiniteError) as raised:
        shell.step(engine, state)
    assert raised.value.state is state
    # From there a run goes on as if nothing had been.
    whole = plain_of(shell)
    expected = shell.bits(whole, shell.run(whole, 30)[0])
    found, _ = shell.run(loaded, 20, saved)
    assert shell.bits(loaded, found) == expected


def test_a_broken_step_can_be_skipped(shell: Shell) -> None:
    def make() -> Any:
        return shell.make(breaks_at=10, on_nonfinite="skip")

    engine = make()
    state, result = shell.run(engine, 30)
    assert shell.taken(engine, state) == 30 and shell.skipped(engine, state) == 1
    assert np.flatnonzero(np.isnan(result.losses)).tolist() == [10]
    assert all(np.isfinite(value).all() for value in shell.samples(engine, state).values())
    engine = make()
    state, _ = shell.run(engine, 10)
    algorithm, bits = shell.algorithm(engine, state), shell.bits(engine, state)
    state, loss = shell.step(engine, state)
    assert np.isnan(float(loss)) and shell.algorithm(engine, state) == algorithm
    # The next minibatch and random numbers are new.
    assert shell.bits(engine, state) != bits


def test_progress_bar_shows_loss_and_rate(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    engine = shell.make(breaks_at=3, on_nonfinite="skip")
    shell.run(engine, 20, progress_bar=True)
    shown = capsys.readouterr().err
    assert "NoisyAscent" in shown and "20/20" in shown
    assert "loss=" in shown and "norm=" in shown and "skipped=1" in shown
    assert "it/s" in shown or "s/it" in shown
    shell.run(engine, 5)
    assert capsys.readouterr().err == ""


# -- saved states ----------------------------------------------------------------------------------


def test_saved_states_belong_to_their_engine(shell: Shell, tmp_path: Path) -> None:
    path, engine = tmp_path / "state", shell.make()
    state, _ = shell.run(engine, 3)
    shell.save(engine, state, path)
    again = shell.make()
    assert shell.bits(again, shell.load(again, path)) == shell.bits(engine, state)

    class Other(shell.engine_class):  # type: ignore[misc, name-defined]
        pass

    class Salted(shell.engine_class):  # type: ignore[misc, name-defined]
        def _settings(self) -> dict[str, str]:
            return {**super()._settings(), "flavour": "salted"}

    Salted.__name__ = "NoisyAscent"
    sgd = shell.backend.host.optim.SGD({"lr": 0.1} if shell.is_pyro else 0.1)
    full = shell.backend.public.Full()
    faults = {
        "state of Other, found one of NoisyAscent": Other(shell.model, shell.backend.adam(0.1)),
        "another flavour: expected salted, found None": Salted(
            shell.model, shell.backend.adam(0.1)
        ),
        r"another estimator: expected Full\(\), found Minibatch": shell.make(estimator=full),
        "another optimizer: expected .*SGD.*, found .*Adam": shell.make(sgd),
    }
    if not shell.is_pyro:  # whose arrays the shell compares itself
        faults[r"does not fit this engine: .*\[3,2\]"] = shell.make(num=4)
    for words, other in faults.items():
        with pytest.raises(ArgumentError, match=words):
            shell.load(other, path)
    if not shell.is_pyro:  # which waits for the model's arguments instead
        with pytest.raises(ArgumentError, match="missing a required argument"):
            shell.make().load(path)


def test_files_that_are_no_saved_states_are_named(shell: Shell, tmp_path: Path) -> None:
    contents = {
        "notes.txt": b"not an array\n",
        "empty.npz": b"",
        "cut.npz": b"PK\x03\x04 and no more",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "foreign.npz", a=np.ones(2))
    np.savez(tmp_path / "header.npz", header=np.frombuffer(b"[1]", np.uint8))
    with zipfile.ZipFile(tmp_path / "archive.pt", "w") as archive:  # as torch.save writes them
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    for name in (*contents, "array.npy", "foreign.npz", "header.npz", "archive.pt"):
        with pytest.raises(ArgumentError, match=f"saved by an engine; .*{name} is not one"):
            state_files.load(tmp_path / name, "NoisyAscent", lambda array, extra: array)
    with pytest.raises(ArgumentError, match="saved by an engine"):
        shell.load(plain_of(shell), tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        shell.load(plain_of(shell), tmp_path / "nowhere.npz")


def test_a_failed_save_leaves_the_old_file(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, engine = tmp_path / "state", plain_of(shell)
    state, _ = shell.run(engine, 3)
    shell.save(engine, state, path)
    before = path.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    state, _ = shell.run(engine, 5)
    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        shell.save(engine, state, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]


# -- options and arguments -------------------------------------------------------------------------


def test_options_and_arguments_are_checked(shell: Shell) -> None:
    with pytest.raises(ArgumentError, match="'raise', 'skip'"):
        shell.make(on_nonfinite="ignore")
    with pytest.raises(ArgumentError, match="GradientEstimator"):
        shell.make(estimator="svrg")
    engine = shell.make()
    with pytest.raises(RuntimeError, match="has not seen the model's arguments"):
        _ = engine.target
    with pytest.raises(RuntimeError, match="has not seen the model's arguments"):
        shell.samples(engine, None)
    with pytest.raises(ArgumentError, match=r"num_steps to be an int >= 0"):
        shell.run(engine, -1)
    words = r"first argument of run, found Tensor" if shell.is_pyro else "second argument of run"
    with pytest.raises(ArgumentError, match=words):
        shell.run(engine, *shell.args)
    with pytest.raises(ArgumentError, match="checkpoint_every"):
        shell.run(engine, 3, checkpoint_every=0)
    with pytest.raises(ArgumentError, match=r"model\(y"):
        shell.run(engine, 3, bacth=8)
    keys = () if shell.is_pyro else (shell.backend.key(),)
    with pytest.raises(ArgumentError, match="missing a required argument"):
        engine.run(*keys, 3)
    with pytest.raises(ModelCheckError):
        engine.run(*keys, 3, shell.backend.array(np.full(40, np.nan)), batch=8)
    # None of these has done anything: it can still be used.
    state, result = shell.run(engine, 0)
    assert result.losses.shape == (0,) and shell.taken(engine, state) == 0


def test_optimizers_that_are_none_are_refused(shell: Shell) -> None:
    if shell.is_pyro:
        import torch

        bound = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
        wrong, words = [bound, "adam", 0.1], r"pyro\.optim\.Adam"
    else:
        wrong = [shell.backend.host.optim.Minimize(), "adam", 0.1]
        words = r"numpyro\.optim\.|optax"
    for optim in wrong:
        with pytest.raises(ArgumentError, match=words):
            shell.start(shell.make(optim))


def test_estimator_is_the_default_for_the_model_unless_given(shell: Shell) -> None:
    public = shell.backend.public
    drawn = public.Minibatch(sampling="replacement")
    for options, batch, expected in (
        ({}, 8, public.Minibatch()),
        ({}, None, public.Full()),
        ({"estimator": drawn}, 8, drawn),
    ):
        engine = shell.make(**options)
        if shell.is_pyro:
            engine.setup(*shell.args, batch=batch)
        else:
            engine.init(shell.backend.key(), *shell.args, batch=batch)
        assert engine.plan.estimator == expected


# -- Pyro's global generator and parameters --------------------------------------------------------


def test_pyros_generator_and_parameter_store_are_left_alone() -> None:
    torch = pytest.importorskip("torch")
    shell = shell_of("pyro")
    engine = shell.make()
    before = torch.random.get_rng_state()
    shell.run(engine, 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not list(shell.backend.host.get_param_store())


def test_seeds_decide_the_run_and_the_default_follows_pyros_seed() -> None:
    pytest.importorskip("torch")
    shell = shell_of("pyro")

    def losses(seed: Any) -> np.ndarray:
        return shell.run(shell.make(seed=seed), 5)[1].losses

    assert np.array_equal(losses(1), losses(1))
    assert not np.array_equal(losses(1), losses(2))
    found = []
    for _ in range(2):
        shell.backend.host.set_rng_seed(7)
        found.append(losses(None))
    np.testing.assert_array_equal(*found)
