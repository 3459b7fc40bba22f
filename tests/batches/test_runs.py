"""Runs, anchors and diagnostics over a loader equal those with all rows in memory."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError, BatchWarning, NonFiniteError
from tests.backends import use_float64
from tests.batches_support import (
    BATCH,
    ROWS,
    Again,
    WithState,
    X,
    Y,
    by_argument,
    by_index,
    of_torch,
)
from tests.engine_support import Verbs, noisy_ascent
from tests.gradients_support import Estimation

use_float64()


class Loaded(Verbs):
    """Verbs of an engine whose runs take their batches from a loader that is made for each."""

    def __init__(self, backend: Any, loader: Any) -> None:
        super().__init__(backend, ())
        self.loader = loader

    def run(self, engine: Any, steps: Any, state: Any = None, **options: Any) -> tuple[Any, Any]:
        return super().run(engine, steps, state, **{"batches": self.loader(), **options})

    def load(self, engine: Any, path: Path) -> Any:
        if self.is_pyro:
            engine.load(path)
            return None
        return engine.load(path, *self.backend.arrays(next(iter(Again()))))


def make(backend: Any, model: Any = None, **options: Any) -> Any:
    seeds = {"seed": 0} if backend.is_pyro else {}
    model = by_argument(backend) if model is None else model
    options = {"init_strategy": None, **options}
    return noisy_ascent(backend.name)(model, backend.adam(0.05), **seeds, **options)


def points(backend: Any, engine: Any, state: Any) -> np.ndarray:
    return Verbs(backend, ()).samples(engine, state)["w"]


# -- equality ----------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True], ids=["tuples", "mappings"])
def test_a_run_is_that_of_the_same_rows_in_memory(backend: Any, named: bool) -> None:
    steps = 2 * ROWS // BATCH + 3
    engine = make(backend, by_index(backend), estimator=backend.public.Minibatch("cyclic"))
    theirs, run = Verbs(backend, backend.arrays((X, Y))).run(engine, steps, start="host")
    expected = points(backend, engine, theirs)
    loaded = make(backend)
    ours, found = Loaded(backend, lambda: Again(named=named)).run(loaded, steps, start="host")
    np.testing.assert_allclose(points(backend, loaded, ours), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.losses, run.losses, rtol=1e-12)


def test_the_mean_of_batches_is_the_full_score(backend: Any) -> None:
    """Over an epoch, a batch of n rows counting n times, the ragged last one among them."""
    z = np.random.default_rng(1).normal(size=(3, 2))
    target, _ = backend.target(by_argument(backend), backend.arrays(next(iter(Again(size=10)))))
    reference, data = backend.target(by_argument(backend), backend.arrays((X, Y)))
    expected = backend.numpy(reference.full_score(backend.array(z), data).score)
    scores, rows = [], []
    for batch in Again(size=10):
        found = target.score(backend.array(z), target.bind(*backend.arrays(batch)))
        scores.append(backend.numpy(found.score))
        rows.append(len(batch[1]))
    assert np.ptp(scores, axis=0).max() > 1.0
    mean = np.average(scores, axis=0, weights=rows)
    np.testing.assert_allclose(mean, expected, rtol=1e-11)


def test_a_pass_gives_the_values_and_scores_of_all_rows(backend: Any) -> None:
    options = {"likelihood_temperature": 0.7}
    z = backend.array(np.random.default_rng(2).normal(size=(3, 2)))
    batch = backend.arrays(next(iter(Again(size=10))))
    target, data = backend.target(by_argument(backend), batch, **options)
    over = target.over(Passes(Again(size=10)))
    reference, every = backend.target(by_argument(backend), backend.arrays((X, Y)), **options)
    for name in ("full_score", "full_score_parts", "full_log_prior_and_likelihood"):
        found, expected = getattr(over, name)(z, data), getattr(reference, name)(z, every)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(backend.numpy(ours), backend.numpy(theirs), rtol=1e-11)


def test_anchors_over_a_loader_are_those_over_arrays(backend: Any) -> None:
    """With its batches cut otherwise than the steps', and a ragged last one."""
    SVRG = backend.public.SVRG
    first = backend.arrays(next(iter(Again())))
    anchor, z = np.random.default_rng(3).normal(size=(2, 2, 2))
    found = []
    for full_data in (backend.arrays((X, Y)), Again(size=10)):
        target, data = backend.target(by_argument(backend), first)
        estimation = Estimation(backend, SVRG(5, full_data=full_data), target, data)
        found.append([estimation.estimate(each).score for each in (anchor, z)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-11)
    assert np.abs(found[0][1] - found[0][0]).max() > 0.1


# -- going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loader",
    [lambda: Again(size=10), pytest.param(lambda: WithState(size=10), marks=pytest.mark.slow)],
    ids=["ragged", "with a state"],
)
def test_a_run_goes_on_to_the_bit(backend: Any, tmp_path: Path, loader: Any) -> None:
    """From files at places inside of epochs and at their ends, random numbers included."""
    loaded, cuts = Loaded(backend, loader), np.random.default_rng(7).choice(np.arange(1, 13), 3)

    def save(step: int, held: Any, _: Any) -> None:
        if step in cuts:
            loaded.save(whole, None if backend.is_pyro else held, tmp_path / str(step))

    whole = make(backend)
    state, _ = loaded.run(whole, 13, start="host", callback=save, callback_every=1)
    expected = loaded.bits(whole, state)
    for cut in map(int, cuts):
        again = make(backend)
        found, _ = loaded.run(again, 13 - cut, loaded.load(again, tmp_path / str(cut)))
        assert loaded.taken(again, found) == 13
        assert loaded.bits(again, found) == expected
        if backend.is_pyro:
            assert again.gradient_evaluations == pytest.approx(whole.gradient_evaluations)


def test_how_soon_batches_come_changes_no_bit(backend: Any) -> None:
    """Alone or many at once, in pieces of one step or of many; the last arguments are kept."""

    class Slow(Again):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                time.sleep(0.03)
                yield batch

    steps, found = 13, []
    for kind, every in ((Again, 100), (Again, 1), (Slow, 100)):
        engine = make(backend)
        loaded = Loaded(backend, lambda kind=kind: kind(size=10))
        options = {"callback": lambda *_: None, "callback_every": every}
        state, run = loaded.run(engine, steps, start="host", **options)
        found.append((loaded.bits(engine, state), np.asarray(run.losses).tobytes()))
        np.testing.assert_array_equal(backend.numpy(engine.data.args[0]), X[20:30])
    assert found[0] == found[1] == found[2]


# -- faults ------------------------------------------------------------------------------------


def test_a_step_that_is_skipped_is_told_by_its_batch(backend: Any) -> None:
    x = X.copy()
    x[17] = np.nan
    engine = make(backend, on_nonfinite="skip")
    loaded = Loaded(backend, lambda: Again(x=x))
    with pytest.warns(BatchWarning, match="2 batches.*batch 2 of epoch 0, 2 of epoch 1"):
        state, run = loaded.run(engine, 10, start="host")
    assert loaded.skipped(engine, state) == 2
    assert np.flatnonzero(np.isnan(run.losses)).tolist() == [2, 8]


def test_an_error_says_which_batch_it_came_with(backend: Any) -> None:
    x = X.copy()
    x[17] = np.nan
    engine = make(backend)
    with pytest.raises(NonFiniteError, match=r"argument 'x' \(2 of 16, the first at") as raised:
        Loaded(backend, lambda: Again(x=x)).run(engine, 10, start="host")
    assert any("batch 2 of epoch 0 (rows 16 to 23" in note for note in raised.value.__notes__)


def test_an_error_of_the_loader_leaves_the_last_whole_step(backend: Any, tmp_path: Path) -> None:
    class Breaks(Again):
        def __iter__(self) -> Any:
            for number, batch in enumerate(super().__iter__()):
                if number == 4:
                    raise OSError("the disk is gone")
                yield batch

    path = tmp_path / "state"
    engine, loaded = make(backend), Loaded(backend, Breaks)
    with pytest.raises(OSError, match="the disk is gone") as raised:
        loaded.run(engine, 10, start="host", checkpoint=path)
    assert any("from the loader, after batch 3 of epoch 0" in e for e in raised.value.__notes__)
    whole = make(backend)
    state, _ = Loaded(backend, Again).run(whole, 10, start="host")
    again = make(backend)
    found = loaded.load(again, path)
    found, _ = Loaded(backend, Again).run(again, 6, found)
    assert loaded.taken(again, found) == 10
    assert loaded.bits(again, found) == loaded.bits(whole, state)


def test_ctrl_c_ends_the_thread_and_keeps_the_place(backend: Any) -> None:
    engine = make(backend)

    def interrupt(step: int, *_: Any) -> None:
        if step == 3:
            raise KeyboardInterrupt

    loaded = Loaded(backend, Again)
    with pytest.raises(KeyboardInterrupt) as raised:
        loaded.run(engine, 20, start="host", callback=interrupt, callback_every=1)
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]
    saved = engine._place if backend.is_pyro else bytes(raised.value.state.batches).decode()
    assert re.search(r'"epoch": 0, "batch": 3, "rows": 24', saved)


def test_the_bar_shows_rows_and_epochs(backend: Any, capsys: Any) -> None:
    Loaded(backend, Again).run(make(backend), 8, start="host", progress_bar=True)
    assert "epoch=1, rows=16/48" in capsys.readouterr().err


def test_three_sizes_are_refused(backend: Any) -> None:
    batches = [(X[:20], Y[:20]), (X[20:30], Y[20:30]), (X[30:], Y[30:])]
    with pytest.raises(ArgumentError, match=r"batches of one size.*\[10, 18, 20\]"):
        Loaded(backend, lambda: batches).run(make(backend), 5, start="host")


# -- other engines, loaders and diagnostics ----------------------------------------------------


class Broken(Again):
    """Ends with an error of its own after some batches."""

    def __iter__(self) -> Iterator[Any]:
        yield from list(super().__iter__())[:3]
        raise OSError("the disk is gone")


def test_a_loader_s_own_error_is_raised_as_it_is(
    backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = {"seed": 0} if backend.is_pyro else {}
    arguments: Any = (by_argument(backend), backend.adam(0.05))
    particles = backend.public.SVGD(*arguments, num_particles=2, **seeds)
    _, run = Loaded(backend, Again).run(particles, 2, start="host")
    held = () if backend.is_pyro else (run,)
    with pytest.raises(OSError, match="the disk is gone"):
        backend.public.ksd(particles, *held, batches=Broken())
    engine = backend.public.SVGDVR(
        *arguments, num_particles=2, anchor_every=2, full_data=Broken(), **seeds
    )
    with pytest.raises(OSError, match="the disk is gone"):
        Loaded(backend, Again).run(engine, 4, start="host")
    assert "the disk is gone" not in caplog.text


@pytest.mark.slow
def test_diagnostics_over_a_loader_are_those_of_all_rows(backend: Any) -> None:
    px, model = backend.public, by_argument(backend)
    guide = backend.autoguide.AutoMultivariateNormal(model)
    seeds = {"seed": 0} if backend.is_pyro else {}
    fit, particles = px.ProximalScoreVI(model, guide, **seeds), None
    loaded = Loaded(backend, lambda: of_torch(size=10))
    _, run = loaded.run(fit, 30, start="host")
    of_fit = () if backend.is_pyro else (run,)
    particles = px.SVGD(model, backend.adam(0.05), num_particles=4, **seeds)
    _, run = loaded.run(particles, 10, start="host")
    of_particles = () if backend.is_pyro else (run,)
    all_rows, loader = backend.arrays((X, Y)), Again(size=10)
    for name, each, given in (
        ("elbo", fit, of_fit),
        ("psis_khat", fit, of_fit),
        ("ksd", particles, of_particles),
        ("ksd", fit, of_fit),
    ):
        look = getattr(px, name)
        ours, theirs = look(each, *given, batches=loader), look(each, *given, args=all_rows)
        np.testing.assert_allclose(float(ours[0]), float(theirs[0]), rtol=1e-9, err_msg=name)
    ours = px.to_arviz(particles, *of_particles, batches=loader)
    theirs = px.to_arviz(particles, *of_particles, *all_rows)
    for group in ("posterior", "log_likelihood", "sample_stats", "observed_data"):
        assert set(ours[group].data_vars) == set(theirs[group].data_vars)
        for name in theirs[group].data_vars:
            a, b = ours[group][name], theirs[group][name]
            assert a.dims == b.dims
            np.testing.assert_allclose(a.values, b.values, rtol=1e-10, atol=1e-12)
    assert ours["posterior_predictive"]["y"].shape == theirs["posterior_predictive"]["y"].shape
    with pytest.raises(ArgumentError, match="batches=loader"):
        px.elbo(fit, *of_fit)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_torch_that_shuffles_goes_on_to_the_bit(
    backend: Any, tmp_path: Path, workers: int
) -> None:
    if workers and not backend.is_pyro:
        pytest.skip("JAX warns of processes that fork beside its threads")
    loaded = Loaded(backend, lambda: of_torch(size=10, num_workers=workers))
    whole = make(backend)
    state, _ = loaded.run(whole, 23, start="host")
    engine = make(backend)
    cut, _ = loaded.run(engine, 8, start="host")
    loaded.save(engine, cut, tmp_path / "state")
    again = make(backend)
    found, _ = loaded.run(again, 15, loaded.load(again, tmp_path / "state"))
    assert loaded.algorithm(again, found) == loaded.algorithm(whole, state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SVGD", "WGD", "DeepEnsemble", "SVGDVR"])
def test_every_engine_of_particles_takes_a_loader(backend: Any, name: str) -> None:
    """And finds the posterior of a linear regression, a Normal, where its kernel lets it."""
    seeds = {"seed": 0} if backend.is_pyro else {}
    optim = (backend.adam(0.02),)
    model = by_argument(backend)
    options: dict[str, Any] = {"anchor_every": 6, "full_data": Again()} if "VR" in name else {}
    engine = getattr(backend.public, name)(model, *optim, num_particles=20, **seeds, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state, _ = Loaded(backend, lambda: of_torch()).run(engine, 600)
    precision = np.eye(2) + X.T @ X
    mean = np.linalg.solve(precision, X.T @ Y)
    error = np.abs(points(backend, engine, state).mean(0) - mean)
    assert (error < 4.0 * np.sqrt(np.diag(np.linalg.inv(precision)) / np.sqrt(20))).all()


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["full", "diag", "kfac", "low_rank"])
@pytest.mark.parametrize("size", [10, 47])
def test_the_curvature_over_a_loader_is_that_of_all_rows(
    backend: Any, structure: str, size: int
) -> None:
    model, seeds = by_argument(backend), {"seed": 0} if backend.is_pyro else {}
    engine = backend.public.LaplaceGGN(model, backend.adam(0.05), curvature=structure, **seeds)
    state, _ = Loaded(backend, Again).run(engine, 20, start="host")
    held = () if backend.is_pyro else (state,)
    with pytest.raises(ArgumentError, match="or batches=loader"):
        engine.fit_curvature(*held)
    found = engine.fit_curvature(*held, batches=Again(size=size))
    ours = backend.numpy(found.log_determinant()), float(engine.log_marginal_likelihood(*held))
    found = engine.fit_curvature(*held, *backend.arrays((X, Y)))
    theirs = backend.numpy(found.log_determinant()), float(engine.log_marginal_likelihood(*held))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
