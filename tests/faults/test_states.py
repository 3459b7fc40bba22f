"""Saved states that do not belong to the engine, damaged files, and places that cannot be written.

Each is refused before anything is overwritten, on the second try as on the first.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine_support import Verbs
from tests.stein_support import optimizer

Y = np.linspace(-1.0, 2.0, 12)
STEPS = 3


@cache
def model_of(backend: Any, kind: str = "normal") -> Callable[..., None]:
    """A mean of rows, whose latent has one of several distributions."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        prior = {
            "normal": lambda: dist.Normal(0.0, 10.0),
            "half normal": lambda: dist.HalfNormal(10.0),
            "gumbel": lambda: dist.Gumbel(0.0, 10.0),
        }[kind]()
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


@pytest.fixture
def verbs(backend: Any) -> Verbs:
    return Verbs(backend, (backend.array(Y),))


@pytest.fixture
def saved(verbs: Verbs, tmp_path: Path) -> Path:
    """The state of an engine with the host's Adam after a few steps."""
    engine = made(verbs.backend, other_optimizer(verbs.backend, "Adam"))
    state, _ = verbs.run(engine, STEPS)
    verbs.save(engine, state, tmp_path / "state")
    return tmp_path / "state"


OTHERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "SGD": (lambda b: made(b, other_optimizer(b, "SGD")), "another optimizer"),
    "Adagrad": (lambda b: made(b, other_optimizer(b, "Adagrad")), "another optimizer"),
    "ClippedAdam": (lambda b: made(b, other_optimizer(b, "ClippedAdam")), "another optimizer"),
    "fewer particles": (lambda b: made(b, other_optimizer(b, "Adam"), number=4), "particles"),
    "half Normal": (lambda b: made(b, other_optimizer(b, "Adam"), "half normal"), "HalfNormal on"),
    "Gumbel": (lambda b: made(b, other_optimizer(b, "Adam"), "gumbel"), "Gumbel on Real"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("has_run", [True, False])
def test_states_of_other_engines_are_refused_twice(
    verbs: Verbs, saved: Path, other: str, has_run: bool
) -> None:
    make, words = OTHERS[other]
    engine = make(verbs.backend)
    state = verbs.run(engine, 2)[0] if has_run else None
    before = verbs.bits(engine, state) if has_run else None
    error = verbs.backend.public.ArgumentError
    for _ in range(2):
        with pytest.raises(error, match=words):
            verbs.load(engine, saved)
    if has_run:
        assert verbs.bits(engine, state) == before and verbs.taken(engine, state) == 2
    elif verbs.is_pyro:
        # What was loaded before the first run is refused by every run, too.
        with pytest.raises(error, match=words):
            verbs.run(engine, 2)


def test_the_learning_rate_is_the_engine_s_own_and_it_is_said(verbs: Verbs, tmp_path: Path) -> None:
    """One more step with SGD is as long as the engine's own rate makes it."""
    backend, path = verbs.backend, tmp_path / "state"
    engine = made(backend, optimizer(backend, "sgd", 0.01))
    state, _ = verbs.run(engine, STEPS)
    verbs.save(engine, state, path)

    def particles(engine: Any, state: Any) -> np.ndarray:
        found = engine.particles if backend.is_pyro else engine.particles(state)
        return np.asarray(backend.numpy(found), np.float64).copy()

    start = particles(engine, state)
    state, _ = verbs.step(engine, state)
    step = particles(engine, state) - start
    other = made(backend, optimizer(backend, "sgd", 0.03))
    with pytest.warns(backend.public.ResumeWarning, match=r"own settings of the optimizer.*0\.03"):
        state = verbs.load(other, path)
    state, _ = verbs.step(other, state)
    np.testing.assert_allclose(particles(other, state) - start, 3.0 * step, rtol=1e-3, atol=1e-6)


def test_a_schedule_goes_on_from_another_first_rate(verbs: Verbs, tmp_path: Path) -> None:
    backend, path = verbs.backend, tmp_path / "state"
    found = []
    for rates in ((0.01, 0.01), (0.03, 0.03), (0.01, 0.03)):
        engine, other = (
            made(backend, optimizer(backend, "sgd", rate, steps=6, end=1e-3)) for rate in rates
        )
        state, _ = verbs.run(engine, STEPS)
        verbs.save(engine, state, path)
        if rates[0] != rates[1]:
            with pytest.warns(backend.public.ResumeWarning):
                state = verbs.load(other, path)
        else:
            state = verbs.load(other, path)
        particles = other.particles if backend.is_pyro else other.particles(state)
        start = backend.numpy(particles).copy()
        state, _ = verbs.step(other, state)
        particles = other.particles if backend.is_pyro else other.particles(state)
        found.append(backend.numpy(particles) - start)
    # The same start and three times the rate; with the other start it is another step.
    np.testing.assert_allclose(found[2], 3.0 * found[0], rtol=1e-3, atol=1e-7)
    assert np.abs(found[2] - found[1]).max() > 1e-4


# -- damaged files ---------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> None:
    """Change the header or the arrays of a saved state."""
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _with_nan(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    particles = [name for name, value in arrays.items() if value.shape == (5, 1)]
    for name in particles:
        arrays[name] = np.full_like(arrays[name], np.nan)
    assert particles


def _misshapen(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    for name, value in arrays.items():
        if value.shape == (5, 1):
            arrays[name] = value[:3]


DAMAGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, np.ndarray]], None], str]] = {
    "NaN": (_with_nan, "NaN or infinity"),
    "another shape": (_misshapen, "found"),
    "a newer format": (lambda header, arrays: header.update(format=99), "format 99"),
    "no settings": (lambda header, arrays: header.pop("settings"), "damaged.*settings"),
    "no state": (lambda header, arrays: header.pop("state"), "damaged.*state"),
    "a missing array": (lambda header, arrays: arrays.pop("array0"), "damaged.*array0"),
    "an empty state": (lambda header, arrays: header.update(state={}), "damaged"),
    "a state of text": (lambda header, arrays: header.update(state="text"), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_states_are_refused(verbs: Verbs, saved: Path, damage: str) -> None:
    change, words = DAMAGES[damage]
    rewritten(saved, change)
    engine = made(verbs.backend, other_optimizer(verbs.backend, "Adam"))
    state, _ = verbs.run(engine, 2)
    before = verbs.bits(engine, state)
    with pytest.raises(verbs.backend.public.ArgumentError, match=words):
        verbs.load(engine, saved)
    assert verbs.bits(engine, state) == before


def test_files_that_were_cut_off_are_refused(verbs: Verbs, saved: Path) -> None:
    whole = saved.read_bytes()
    engine = made(verbs.backend, other_optimizer(verbs.backend, "Adam"))
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        saved.write_bytes(whole[:length])
        with pytest.raises(verbs.backend.public.ArgumentError, match="Expected a file saved by"):
            verbs.load(engine, saved)


def test_other_files_are_refused(verbs: Verbs, tmp_path: Path) -> None:
    engine, path = made(verbs.backend), tmp_path / "other"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("header.npy", b"no array")
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for content in (b"", b"text", archive.getvalue(), array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(verbs.backend.public.ArgumentError, match="Expected a file saved by"):
            verbs.load(engine, path)
    with pytest.raises(FileNotFoundError):
        verbs.load(engine, tmp_path / "absent")


# -- where states are written ----------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_is_found_before_the_first_step(
    verbs: Verbs, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    calls: list[int] = []
    for path in (tmp_path, tmp_path / "absent" / "state", tmp_path / "file" / "state"):
        engine = made(verbs.backend)
        with pytest.raises(verbs.backend.public.ArgumentError, match="Expected checkpoint to be"):
            verbs.run(engine, 5, checkpoint=path, callback=lambda i, *_: calls.append(i))
    assert not calls
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]


def test_what_a_killed_write_left_is_gone_after_the_next(verbs: Verbs, tmp_path: Path) -> None:
    (tmp_path / "state.part").write_bytes(b"half a file")
    verbs.run(made(verbs.backend), 2, checkpoint=tmp_path / "state")
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
