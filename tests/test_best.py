"""The best state of a run: how it is found in noisy figures, kept and gone back to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import LostFitWarning
from ppl_ext.running.best import LARGEST, WINDOW, Best, Watch, warn_if_lost
from ppl_ext.running.piece import Piece
from ppl_ext.running.run import Cadence
from tests.engine_support import Shell, shell_of

DIM = 3


def watched(figures: Iterable[float], every: int = 100, dim: int = DIM) -> Best:
    """What is found of these figures, looked at every so many steps."""
    figures = np.asarray(list(figures), float)
    position = 0
    watch = Watch(dim, lambda piece: piece.losses, lambda: position)
    watch.start(0)
    for start in range(0, len(figures), every):
        piece = figures[start : start + every]
        position = start + len(piece)
        watch.take(Piece(piece, {}))
        watch.look(position)
    found = watch.end()
    assert found is not None and found.state in (found.step, 0)
    return found


def lost(count: int, make: Callable[[np.random.Generator], Any], every: int) -> int:
    """How many of some runs are lost."""
    draws = np.random.default_rng(0)
    return sum(watched(make(draws), every).lost for _ in range(count))


@pytest.mark.parametrize(("steps", "every"), [(60, 20), (400, 20), (2000, 100)])
def test_noise_alone_is_no_loss(steps: int, every: int) -> None:
    """Of minibatches, a thousand times what counts; also with steps that hang together."""

    def white(draws: np.random.Generator) -> Any:
        return 1e5 * draws.normal(size=steps)

    def skewed(draws: np.random.Generator) -> Any:
        return 1e5 * draws.exponential(size=steps) ** 2

    def correlated(draws: np.random.Generator) -> Any:
        noise = np.convolve(draws.normal(size=steps + 9), np.ones(10), "valid")
        return 1e5 * noise

    # Of 200 runs; of a thousand it was at most 3, 15 and 9.
    assert lost(200, white, every) <= 3
    assert lost(200, skewed, every) <= 8
    assert lost(200, correlated, every) <= 8


def test_a_run_that_gets_better_ends_at_its_best() -> None:
    draws = np.random.default_rng(1)
    figures = 1e4 * np.exp(-np.arange(1000) / 100) + draws.normal(size=1000)
    found = watched(figures, 50)
    assert found.step > 700 and not found.lost
    assert found.last == pytest.approx(np.quantile(figures[-WINDOW:], 0.75))


@pytest.mark.parametrize("noise", [0.0, 1.0, 30.0])
def test_divergence_is_told_and_the_best_is_before_it(noise: float) -> None:
    draws = np.random.default_rng(2)
    steps = np.arange(1000)
    figures = 1e3 * np.exp(-steps / 50) + np.exp(0.1 * (steps - 600).clip(0, 500))
    found = watched(figures + noise * draws.normal(size=1000), 50)
    assert found.lost and 200 <= found.step <= 650


@pytest.mark.parametrize("spread", [0.0, 1e3])
def test_divergence_from_the_first_step_goes_back_to_the_start(spread: float) -> None:
    draws = np.random.default_rng(3)
    figures = 500.0 + spread * draws.exponential(size=200)
    figures[0] = 10.0
    found = watched(figures, 20)
    assert found.lost and found.step == 0 and found.loss == 10.0


def test_particles_that_spread_from_a_mode_are_not_lost() -> None:
    figures = DIM * (0.5 - 0.5 * np.exp(-np.arange(500) / 100))
    assert not watched(figures, 25).lost


def test_steps_that_are_not_finite_do_not_count() -> None:
    figures = np.linspace(10.0, 0.0, 200)
    figures[::3] = np.nan
    found = watched(figures, 20)
    assert found.step == 200 and not found.lost
    nothing = watched(np.full(60, np.nan), 20)
    assert nothing.step == 0 and nothing.loss == np.inf and not nothing.lost


def test_a_run_is_looked_at_twenty_times_but_not_too_often() -> None:
    def looks(first: int, steps: int) -> list[int]:
        cadence = Cadence.of(first, steps, (None, None), (None, None))
        return [i for i in range(first + 1, first + steps + 1) if cadence.looks(i)]

    assert looks(0, 50) == [20, 40, 50]
    assert looks(7, 2000) == [*range(100, 2001, 100), 2007]


# -- engines ---------------------------------------------------------------------------------------


@pytest.fixture
def shell(backend: Any) -> Shell:
    return shell_of(backend.name)


def back(shell: Shell, engine: Any, result: Any) -> Any:
    """The best state, gone back to."""
    if not shell.is_pyro:
        return result.best.state
    engine.load(result.best.state)
    return None


def test_a_run_from_the_best_state_is_the_same_to_the_bit(shell: Shell, tmp_path: Path) -> None:
    engine = shell.make()
    state, result = shell.run(engine, 400)
    best = result.best
    assert 0 < best.step <= 400 and not best.lost
    assert best.loss <= np.quantile(result.losses[-WINDOW:], 0.75)
    expected, rest = shell.bits(engine, state), 400 - best.step
    # Twice: what is kept is not written over.
    for _ in range(2):
        before = back(shell, engine, result)
        assert shell.taken(engine, before) == best.step
        path = tmp_path / "best"
        shell.save(engine, before, path)
        found, later = shell.run(engine, rest, before)
        assert shell.bits(engine, found) == expected
        np.testing.assert_array_equal(later.losses, result.losses[best.step :])
    other = shell.make()
    found, _ = shell.run(other, rest, shell.load(other, path))
    assert shell.bits(other, found) == expected


def test_another_engine_takes_the_best_state(shell: Shell) -> None:
    result = shell.run(shell.make(), 40)[1]
    same = shell.make(seed=1)
    shell.start(same)
    before = back(shell, same, result)
    state, _ = shell.run(same, 5, before)
    assert shell.taken(same, state) == result.best.step + 5
    if shell.is_pyro:
        assert len(same.losses) == result.best.step + 5


def test_large_states_are_kept_when_that_is_asked_for(shell: Shell) -> None:
    def kept(keep_best: bool | None, size: int) -> bool:
        engine = shell.make()
        shell.start(engine)
        watch = engine._watch(keep_best, size, lambda: "state")
        watch.start(0)
        return watch.end().state == "state"

    assert kept(None, LARGEST) and not kept(None, LARGEST + 1)
    assert kept(True, LARGEST + 1) and not kept(False, 1)


def test_guides_are_judged_by_the_lower_bound(backend: Any) -> None:
    shell = shell_of(backend.name)
    engine = backend.public.GSM(shell.model, backend.autoguide.AutoMultivariateNormal)
    piece = Piece(np.ones(2), {"log_p": np.array([-3.0, 2.0]), "log_q": np.array([1.0, 1.0])})
    np.testing.assert_array_equal(engine._nats(piece), [4.0, -1.0])
    np.testing.assert_array_equal(shell.make()._nats(piece), piece.losses)


def test_the_warning_says_where_the_run_was_better(shell: Shell) -> None:
    engine = shell.make(optim=shell.backend.adam(1.0))
    result = shell.run(engine, 40)[1]
    warn_if_lost("Fit", result.best._replace(lost=False), "how")
    with pytest.warns(
        LostFitWarning, match=r"at the end of the run and 3 after step 7.*best\.state"
    ):
        warn_if_lost("Fit", result.best._replace(lost=True, loss=3.0, step=7), "how")
