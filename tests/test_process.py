"""Ctrl-C and threads beside what changes the hosts' globals."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from ppl_ext import process
from ppl_ext.arguments import entry
from ppl_ext.process import (
    HOST,
    between_steps,
    hold,
    interruptible,
    raise_waiting,
    release,
    swapping,
)
from tests.backends import from_zoo
from tests.faults.process import in_threads


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _usual_handler() -> Iterator[None]:
    # A shell that starts something in the background has it ignore Ctrl-C.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, usual)
    assert after is signal.default_int_handler
    assert process._interrupt.pending is None
    assert is_free()


def is_free() -> bool:
    """Whether another thread can take the lock."""
    found: list[bool] = []

    def take() -> None:
        found.append(HOST.acquire(timeout=1.0))
        if found[0]:
            HOST.release()

    in_threads([take])
    return found[0]


GLOBAL: list[str] = []


@swapping
@contextmanager
def changed(name: str, pressed: str = "") -> Iterator[None]:
    """A global that is changed, with Ctrl-C where nothing would put it back."""
    GLOBAL.append(name)
    if pressed == "entering":
        press()
    try:
        yield
    finally:
        if pressed == "leaving":
            press()
        GLOBAL.remove(name)


@pytest.mark.parametrize("pressed", ["entering", "inside", "leaving"])
@pytest.mark.parametrize("inner", [False, True])
def test_ctrl_c_comes_when_a_global_is_back(pressed: str, inner: bool) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with changed("outer", "" if inner else pressed):
            if inner:
                with changed("inner", pressed):
                    if pressed == "inside":
                        press()
            elif pressed == "inside":
                press()
            done.append("inside")
        done.append("after")
    assert done == ["inside"] and not GLOBAL


def test_ctrl_c_is_heard_at_places_where_all_is_whole() -> None:
    done = []

    @entry
    def search() -> None:
        press()
        done.append("evaluated")
        raise_waiting()
        done.append("went on")

    with pytest.raises(KeyboardInterrupt):
        search()
    assert done == ["evaluated"]


def test_ctrl_c_after_the_last_place_comes_at_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with between_steps():
            press()
            done.append("end")
        done.append("after")
    assert done == ["end"]


def test_what_is_half_written_is_never_left_by_ctrl_c() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), between_steps():
        hold()
        for _ in range(3):
            press()
            raise_waiting()
        done.append("written")
        release()
        done.append("after")
    assert done == ["written"]


def test_ctrl_c_pressed_again_waits_no_longer() -> None:
    with pytest.raises(KeyboardInterrupt), between_steps():
        press()
        press()
        pytest.fail("expected the second to be heard")


def test_ctrl_c_waits_so_long_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LONGEST_WAIT", 0.05)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), between_steps():
        press()
        while time.perf_counter() - began < 20.0:
            pass
    assert time.perf_counter() - began < 10.0


def test_ctrl_c_comes_at_once_in_functions_of_the_users() -> None:
    with pytest.raises(KeyboardInterrupt), between_steps():
        with interruptible():
            press()
            pytest.fail("expected it at once")


def test_ctrl_c_ends_waiting_for_another_thread() -> None:
    held, done = threading.Event(), threading.Event()

    def other() -> None:
        with changed("other"):
            held.set()
            done.wait(20.0)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(20.0)
    timer = threading.Timer(0.1, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), changed("own"):
            pass
    finally:
        done.set()
        thread.join()
    assert not GLOBAL


def test_what_an_exception_leaves_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    level = [0]

    def keep() -> Any:
        before = level[0]
        return lambda: level.__setitem__(0, before)

    monkeypatch.setattr(process, "KEEPERS", [keep])
    with pytest.raises(ValueError, match="of the model"), between_steps():
        level[0] += 1
        raise ValueError("of the model")
    assert level == [0]


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_handlers_of_the_hosts_are_entered_under_the_lock_alone(
    backend: Any, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """What enters one elsewhere is found in the list by the model of another thread."""
    if backend.is_pyro:
        from pyro.poutine.messenger import Messenger
    else:
        from numpyro.primitives import Messenger
    outside: list[str] = []
    enter = Messenger.__enter__

    def noted(self: Any) -> Any:
        if not HOST._is_owned():  # type: ignore[attr-defined]
            outside.append(f"{type(self).__name__} in {sys._getframe(2).f_code.co_name}")
        return enter(self)

    host, dist, xp = backend.host, backend.dist, backend.xp

    def mixture(y: Any) -> None:
        share = host.sample("share", dist.Beta(2.0, 2.0))
        with host.plate("rows", len(y)):
            kind = host.sample("kind", dist.Bernoulli(share))
            host.sample("y", dist.Normal(xp.where(kind > 0.5, 2.0, -1.0), 1.0), obs=y)

    y = backend.array(np.linspace(-2.0, 3.0, 8))
    key = () if backend.is_pyro else (backend.key(0),)
    monkeypatch.setattr(Messenger, "__enter__", noted)
    backend.public.find_start(*key, mixture, y)
    if not alone:
        fit = backend.public.fit(*key, mixture, y, budget=3_000, progress_bar=False)
        backend.public.check(*key, fit, mixture, y, budget=3_000, progress_bar=False)
        backend.public.to_arviz(fit, y)
    assert not outside


def programs(backend: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Four programs: labels that are summed out, a mixture of the host's, and two without."""
    host, dist, xp = backend.host, backend.dist, backend.xp
    y = backend.array(np.array([-2.0, -1.5, -1.0, 0.5, 2.0, 2.5, 3.0, 3.5]))

    def labels(y: Any) -> None:
        share = host.sample("share", dist.Beta(2.0, 2.0))
        means = host.sample("means", dist.Normal(backend.array([-2.0, 3.0]), 1.0).to_event(1))
        with host.plate("rows", len(y)):
            kind = host.sample("kind", dist.Bernoulli(share))
            host.sample("y", dist.Normal(xp.where(kind > 0.5, means[1], means[0]), 1.0), obs=y)

    def mixture(y: Any) -> None:
        shares = host.sample("shares", dist.Dirichlet(backend.array([2.0, 2.0])))
        means = host.sample("means", dist.Normal(backend.array([-2.0, 3.0]), 1.0).to_event(1))
        parts = dist.MixtureSameFamily(
            dist.Categorical(shares), dist.Normal(means, backend.array([1.0, 1.0]))
        )
        with host.plate("rows", len(y)):
            host.sample("y", parts, obs=y)

    plain = [from_zoo(backend, name)[:2] for name in ("gaussian_one_site", "conjugate_normal")]
    return [(labels, (y,)), plain[0], (mixture, (y,)), plain[1]]


@pytest.mark.parametrize(
    ("number", "rounds"), [(2, 1), pytest.param(4, 20, marks=pytest.mark.slow)]
)
def test_fits_in_threads_are_the_fits_alone(backend: Any, number: int, rounds: int) -> None:
    every = programs(backend)[:number]

    def draws(place: int, seed: int, into: dict[int, Any]) -> None:
        model, args = every[place]
        key = () if backend.is_pyro else (backend.key(seed),)
        seeds = {"seed": seed} if backend.is_pyro else {}
        fit = backend.public.fit(*key, model, *args, budget=2_500, progress_bar=False, **seeds)
        into[place] = {name: backend.numpy(each).tolist() for name, each in fit.draws.items()}

    usual = sys.getswitchinterval()
    for seed in range(rounds):
        alone: dict[int, Any] = {}
        together: dict[int, Any] = {}
        for place in range(number):
            draws(place, seed, alone)
        sys.setswitchinterval(1e-4)
        try:
            in_threads([partial(draws, place, seed, together) for place in range(number)])
        finally:
            sys.setswitchinterval(usual)
        assert together == alone, seed
