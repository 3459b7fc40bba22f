"""Saved states of other engines, damaged files, and places that cannot be written."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine_support import Change, Verbs, rewritten
from tests.faults.table import REFUSED, Trial, fault
from tests.stein_support import optimizer

Make = Callable[[Any], Any]

Y = np.linspace(-1.0, 2.0, 12)
STEPS = 3


@cache
def model_of(backend: Any, kind: str = "normal") -> Callable[..., None]:
    """A mean of rows, whose latent has one of several distributions."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        prior = {
            "half normal": lambda: dist.HalfNormal(10.0),
            "gumbel": lambda: dist.Gumbel(0.0, 10.0),
            "to 10": lambda: dist.Uniform(0.0, 10.0),
            "to 100": lambda: dist.Uniform(0.0, 100.0),
        }.get(kind, lambda: dist.Normal(0.0, 10.0))()
        name = "location" if kind == "renamed" else "mean"
        mean = host.sample(name, prior)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def made(backend: Any, optim: Any = None, kind: str = "normal", number: int = 5) -> Any:
    """SVGD on that model."""
    seeds = {"seed": 0} if backend.is_pyro else {}
    optim = optimizer(backend, "adam", 0.05) if optim is None else optim
    return backend.public.SVGD(model_of(backend, kind), optim, num_particles=number, **seeds)


def other_optimizer(backend: Any, name: str) -> Any:
    """Optimizers of the host by name, all with the rate 0.05."""
    if backend.is_pyro:
        return getattr(backend.host.optim, name)({"lr": 0.05})
    return getattr(backend.host.optim, name)(0.05)


#: Saved states are not taken, and the engine's own state is as it was.
KEPT = "refused, also when tried again; the engine's own state is kept"
STATES, FILES, PLACES = "Saved states", "Damaged files", "Places of states"


@cache
def _saved_bytes(backend: Any) -> bytes:
    verbs = Verbs(backend, (backend.array(Y),))
    engine = made(backend, other_optimizer(backend, "Adam"))
    state, _ = verbs.run(engine, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        verbs.save(engine, state, path)
        return path.read_bytes()


def saved(trial: Trial) -> tuple[Verbs, Path]:
    """The state of an engine with the host's Adam after a few steps."""
    path = trial.folder / "state"
    path.write_bytes(_saved_bytes(trial.backend))
    return Verbs(trial.backend, (trial.backend.array(Y),)), path


def refused_twice(trial: Trial, make: Make, verbs: Verbs, path: Path, words: str) -> None:
    """See that engines take no state from a file, and keep their own once they have run."""
    engine = make(trial.backend)
    for has_run in (False, True):
        if has_run and trial.is_pyro:
            # An engine that has refused a state before its first run refuses to run.
            engine = make(trial.backend)
        state = verbs.run(engine, 2)[0] if has_run else None
        before = verbs.bits(engine, state) if has_run else None
        for _ in range(2):
            with trial.refused(words):
                verbs.load(engine, path)
        if has_run:
            assert verbs.bits(engine, state) == before and verbs.taken(engine, state) == 2


OTHERS: dict[str, tuple[Make, str]] = {
    "of Adam, for SGD": (lambda b: made(b, other_optimizer(b, "SGD")), "another optimizer"),
    "for Adagrad": (lambda b: made(b, other_optimizer(b, "Adagrad")), "another optimizer"),
    "for ClippedAdam": (lambda b: made(b, other_optimizer(b, "ClippedAdam")), "another optimizer"),
    "for fewer particles": (
        lambda b: made(b, other_optimizer(b, "Adam"), number=4),
        "particles",
    ),
    "of a `Normal` latent, for a `HalfNormal` of the name": (
        lambda b: made(b, other_optimizer(b, "Adam"), "half normal"),
        "HalfNormal on",
    ),
    "for a `Gumbel` of the name": (
        lambda b: made(b, other_optimizer(b, "Adam"), "gumbel"),
        "Gumbel on Real",
    ),
    "for a latent of another name": (
        lambda b: made(b, other_optimizer(b, "Adam"), "renamed"),
        "location",
    ),
}


#: Optimizers are told apart by their names.
LIKE_OTHERS = ("for Adagrad", "for ClippedAdam")


def _of_another(make: Make, words: str, trial: Trial) -> None:
    verbs, path = saved(trial)
    refused_twice(trial, make, verbs, path, words)
    if trial.is_pyro:
        # What was loaded before the first run is refused by every run, too.
        engine = make(trial.backend)
        engine.load(path)
        for _ in range(2):
            with trial.refused(words):
                verbs.run(engine, 2)


for _given, (_make, _words) in OTHERS.items():
    fault(STATES, f"a state {_given}", KEPT, slow=_given in LIKE_OTHERS)(
        partial(_of_another, _make, _words)
    )


@fault(STATES, "a state of another engine, `load` and `init_state=`", KEPT)
def _of_another_engine(trial: Trial) -> None:
    verbs, path = saved(trial)

    def ensemble(backend: Any) -> Any:
        optim = other_optimizer(backend, "Adam")
        return trial.engine("DeepEnsemble", model_of(backend), optim, num_particles=5)

    refused_twice(trial, ensemble, verbs, path, "SVGD")
    if not trial.is_pyro:
        engine = made(trial.backend, other_optimizer(trial.backend, "Adam"))
        state, _ = verbs.run(engine, 1)
        with trial.refused("belong|another"):
            verbs.run(ensemble(trial.backend), 1, state)


@fault(STATES, "a state of a `Uniform` from 0 to 10, for one from 0 to 100", KEPT)
def _of_another_interval(trial: Trial) -> None:
    backend, path = trial.backend, trial.folder / "state"
    verbs = Verbs(backend, (backend.array(Y),))
    engine = made(backend, kind="to 10")
    state, _ = verbs.run(engine, STEPS)
    verbs.save(engine, state, path)
    refused_twice(trial, lambda b: made(b, kind="to 100"), verbs, path, "from 0 to 100.*to 10'")


@fault(
    STATES,
    "draws, parameters, a step or the ELBO of another model's or engine's state",
    REFUSED,
    pyro=None,
)
def _used_elsewhere(trial: Trial) -> None:
    backend = trial.backend
    verbs = Verbs(backend, (backend.array(Y),))
    guide = backend.autoguide.AutoDiagonalNormal
    fits = [
        trial.engine("ProximalScoreVI", model_of(backend, kind), guide)
        for kind in ("normal", "half normal")
    ]
    sets = [made(backend, kind=kind) for kind in ("normal", "half normal")]
    for own, other in (fits, sets, (fits[0], sets[0])):
        verbs.run(own, 1)
        state, result = verbs.run(other, 1)
        for use in (own.get_samples, own.get_params, lambda s, e=own: e.update(s, *verbs.args)):
            with trial.refused("Expected a state of this"):
                use(state)
        for figure in ("elbo", "psis_khat", "ksd", "to_arviz"):
            if own in fits or figure in ("ksd", "to_arviz"):
                args = verbs.args if figure == "to_arviz" else ()
                with trial.refused("Expected a state of this"):
                    getattr(trial.public, figure)(own, result, *args)


#: What both packages say and do about other numbers of the optimizer.
OWN_RATE = "loaded; the engine's own rate holds, and `ResumeWarning` says so"


def particles(engine: Any, state: Any, backend: Any) -> np.ndarray:
    found = engine.particles if backend.is_pyro else engine.particles(state)
    return np.asarray(backend.numpy(found), np.float64).copy()


@fault(STATES, "a state of the same optimizer with another learning rate", OWN_RATE)
def _other_rate(trial: Trial) -> None:
    """One more step with SGD is as long as the engine's own rate makes it."""
    backend, path = trial.backend, trial.folder / "state"
    verbs = Verbs(backend, (backend.array(Y),))
    engine = made(backend, optimizer(backend, "sgd", 0.01))
    state, _ = verbs.run(engine, STEPS)
    verbs.save(engine, state, path)
    start = particles(engine, state, backend)
    state, _ = verbs.step(engine, state)
    step = particles(engine, state, backend) - start
    other = made(backend, optimizer(backend, "sgd", 0.03))
    with trial.warned(r"own settings of the optimizer.*0\.03", trial.public.ResumeWarning):
        state = verbs.load(other, path)
    state, _ = verbs.step(other, state)
    moved = particles(other, state, backend) - start
    np.testing.assert_allclose(moved, 3.0 * step, rtol=1e-3, atol=1e-6)


@fault(
    STATES, "a state with a schedule of another first rate", "goes on in proportion, and says so"
)
def _other_schedule(trial: Trial) -> None:
    backend, path = trial.backend, trial.folder / "state"
    verbs = Verbs(backend, (backend.array(Y),))
    found = []
    for rates in ((0.01, 0.01), (0.03, 0.03), (0.01, 0.03)):
        engine, other = (
            made(backend, optimizer(backend, "sgd", rate, steps=6, end=1e-3)) for rate in rates
        )
        state, _ = verbs.run(engine, STEPS)
        verbs.save(engine, state, path)
        if rates[0] != rates[1]:
            with trial.warned("own settings", trial.public.ResumeWarning):
                state = verbs.load(other, path)
        else:
            state = verbs.load(other, path)
        start = particles(other, state, backend)
        state, _ = verbs.step(other, state)
        found.append(particles(other, state, backend) - start)
    # The same start and three times the rate; with the other start it is another step.
    np.testing.assert_allclose(found[2], 3.0 * found[0], rtol=1e-3, atol=1e-7)
    assert np.abs(found[2] - found[1]).max() > 1e-4


# -- damaged files ---------------------------------------------------------------------------------


def _with_nan(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    particles = [name for name, value in arrays.items() if value.shape == (5, 1)]
    for name in particles:
        arrays[name] = np.full_like(arrays[name], np.nan)
    assert particles


def _misshapen(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    for name, value in arrays.items():
        if value.shape == (5, 1):
            arrays[name] = value[:3]


DAMAGES: dict[str, tuple[Change, str]] = {
    "with particles that are NaN": (_with_nan, "NaN or infinity"),
    "with an array of another shape": (_misshapen, "found"),
    "of a newer format": (lambda header, arrays: header.update(format=99), "format 99"),
    "without settings": (lambda header, arrays: header.pop("settings"), "damaged.*settings"),
    "without a state": (lambda header, arrays: header.pop("state"), "damaged.*state"),
    "without one of its arrays": (lambda header, arrays: arrays.pop("array0"), "damaged.*array0"),
    "whose state is empty": (lambda header, arrays: header.update(state={}), "damaged"),
    "whose state is text": (lambda header, arrays: header.update(state="text"), "damaged"),
    "whose settings are text": (lambda header, arrays: header.update(settings="all"), "damaged"),
}


def _damaged(change: Change, words: str, trial: Trial) -> None:
    verbs, path = saved(trial)
    rewritten(path, change)
    refused_twice(trial, lambda b: made(b, other_optimizer(b, "Adam")), verbs, path, words)


for _given, (_change, _words) in DAMAGES.items():
    fault(FILES, f"a state {_given}", KEPT)(partial(_damaged, _change, _words))


def _entries(backend: Any, header: dict[str, Any]) -> list[list[Any]]:
    """Names and values of what the next step needs."""
    found: list[list[Any]] = header["state"]["dict"]
    return found if backend.is_pyro else dict(found)["state"]["dict"]


@fault(FILES, "a state that lacks any one of its entries, or has text in its place", KEPT)
def _entry(trial: Trial) -> None:
    verbs, path = saved(trial)
    whole = path.read_bytes()
    engine = made(trial.backend, other_optimizer(trial.backend, "Adam"))
    state, _ = verbs.run(engine, 2)
    before = verbs.bits(engine, state)
    header = json.loads(dict(np.load(path))["header"].tobytes())
    names = [name for name, _ in _entries(trial.backend, header)]
    assert len(names) > 5
    for name in names:

        def without(header: dict[str, Any], arrays: Any, name: str = name) -> None:
            entries = _entries(trial.backend, header)
            entries[:] = [each for each in entries if each[0] != name]

        def with_text(header: dict[str, Any], arrays: Any, name: str = name) -> None:
            next(each for each in _entries(trial.backend, header) if each[0] == name)[1] = "text"

        for change in (without, with_text):
            # Rows in words that no engine has are those of other data.
            if (name, change) == ("rows", with_text):
                continue
            path.write_bytes(whole)
            rewritten(path, change)
            for _ in range(2):
                with trial.refused("damaged|does not fit|belongs to other data|Expected a saved"):
                    verbs.load(engine, path)
            assert verbs.bits(engine, state) == before


@fault(FILES, "a state that was cut off, at forty lengths", KEPT)
def _cut_off(trial: Trial) -> None:
    verbs, path = saved(trial)
    whole = path.read_bytes()
    engine = made(trial.backend, other_optimizer(trial.backend, "Adam"))
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:length])
        with trial.refused("Expected a file saved by"):
            verbs.load(engine, path)


@fault(FILES, "an empty file, text, a zip archive, one array", KEPT)
def _other_files(trial: Trial) -> None:
    verbs, path = Verbs(trial.backend, (trial.backend.array(Y),)), trial.folder / "other"
    archive, array = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("header.npy", b"no array")
    np.save(array, np.zeros(3))
    for content in (b"", b"text", archive.getvalue(), array.getvalue()):
        path.write_bytes(content)
        with trial.refused("Expected a file saved by"):
            verbs.load(made(trial.backend), path)


@fault(FILES, "a path where nothing is", "`FileNotFoundError`")
def _absent(trial: Trial) -> None:
    with pytest.raises(FileNotFoundError):
        Verbs(trial.backend, (trial.backend.array(Y),)).load(
            made(trial.backend), trial.folder / "absent"
        )


@fault(FILES, "`save(path, result)` and `save(path, None)`", REFUSED, pyro=None)
def _no_state(trial: Trial) -> None:
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    engine = made(trial.backend)
    _, result = verbs.run(engine, 1)
    for wrong in (result, None):
        with trial.refused("state"):
            engine.save(trial.folder / "state", wrong)
    assert not list(trial.folder.iterdir())


# -- where states are written ----------------------------------------------------------------------


@fault(PLACES, "a checkpoint that is a folder, in a folder that is absent or a file, or empty")
def _places(trial: Trial) -> None:
    folder = trial.folder
    (folder / "file").write_text("")
    for path in (folder, folder / "absent" / "state", folder / "file" / "state", ""):
        with trial.refused("Expected checkpoint to be"):
            trial.run(made(trial.backend), 5, trial.backend.array(Y), checkpoint=path)
    assert sorted(each.name for each in folder.iterdir()) == ["file"]


@fault(PLACES, "a write just before the power fails", "on the disk before it takes its place")
def _synced(trial: Trial) -> None:
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):
            real = getattr(os, name)

            def noted(*args: Any, name: str = name, real: Any = real) -> Any:
                calls.append(name)
                return real(*args)

            patch.setattr(os, name, noted)
        trial.run(made(trial.backend), 1, trial.backend.array(Y), checkpoint=trial.folder / "state")
    assert calls == ["fsync", "replace"]


@fault(FILES, "a state whose numbers a tool has changed", KEPT)
def _changed_numbers(trial: Trial) -> None:
    verbs, path = saved(trial)
    with np.load(path) as archive:
        arrays = dict(archive)
    name = next(name for name, value in arrays.items() if value.shape == (5, 1))
    arrays[name] = arrays[name] + 0.5
    with path.open("wb") as file:
        np.savez(file, **arrays)
    words = "damaged: its numbers or its header are not those that were saved"
    refused_twice(trial, lambda b: made(b, other_optimizer(b, "Adam")), verbs, path, words)


@fault(PLACES, "a checkpoint that is a device, a pipe or a link that leads to itself")
def _no_files(trial: Trial) -> None:
    pipe, link = trial.folder / "pipe", trial.folder / "link"
    os.mkfifo(pipe)
    link.symlink_to(link)
    for path in ("/dev/null", pipe, link):
        with trial.refused("Expected checkpoint to be a file that can be written"):
            trial.run(made(trial.backend), 5, trial.backend.array(Y), checkpoint=path)
    assert sorted(each.name for each in trial.folder.iterdir()) == ["link", "pipe"]
    assert pipe.is_fifo() and link.is_symlink()


@fault(PLACES, "`save` into a folder that is absent")
def _absent_folder(trial: Trial) -> None:
    verbs, engine = Verbs(trial.backend, (trial.backend.array(Y),)), made(trial.backend)
    state, _ = verbs.run(engine, 1)
    with trial.refused("Expected path to be a file that can be written.*Make its folder"):
        verbs.save(engine, state, trial.folder / "absent" / "state")


@fault(PLACES, "half a file of a write that was killed", "gone after the next write")
def _half_a_file(trial: Trial) -> None:
    (trial.folder / "state.0123456789abcdef.part").write_bytes(b"half a file")
    trial.run(made(trial.backend), 2, trial.backend.array(Y), checkpoint=trial.folder / "state")
    assert [each.name for each in trial.folder.iterdir()] == ["state"]
