"""Several engines in one process, and exceptions in the middle of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.process import HOST
from tests.engine_support import Verbs
from tests.faults.programs import mean
from tests.faults.table import REFUSED, RUNS, Trial, fault

GROUP = "Threads, exceptions and sharing"
Y = np.linspace(-1.0, 2.0, 12)
#: Steps of a run that is not meant to end by itself.
MANY = 10**6
#: The exception leaves the state of the last whole step, or of the last whole piece of the run.
KEPT = "the last whole step is kept, and a run goes on from it exactly"
KEPT_PIECE = "the last whole steps are kept in `error.state`, and a run goes on from them exactly"


def mean_with_parameter(backend: Any, value: float) -> Callable[[Any], None]:
    """A mean of rows whose prior is at a parameter, which all of these models call the same."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        centre = host.param("centre", backend.array(value))
        mu = host.sample("mu", dist.Normal(centre, 0.01))
        with host.plate("rows", len(y), subsample_size=6) as rows:
            host.sample("y", dist.Normal(mu, 100.0), obs=y[rows])

    return model


def in_threads(tasks: list[Callable[[], None]]) -> None:
    """Run tasks at the same time, and raise the first error of any."""
    errors: list[BaseException] = []

    def kept(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 raised below
            errors.append(error)

    threads = [threading.Thread(target=kept, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def validation_of(backend: Any) -> tuple[Any, ...]:
    """What of the hosts is validated, what their parameter stores hold and which handlers act."""
    if backend.is_pyro:
        import pyro
        import torch

        names = ("validate_poutine", "validate_infer", "validate_distributions_pyro")
        return (
            *(pyro.settings.get(name) for name in names),
            torch.distributions.Distribution._validate_args,
            list(pyro.get_param_store().keys()),
            list(pyro.poutine.runtime._PYRO_STACK),
            torch.get_rng_state().tolist(),
        )
    import numpyro

    distribution = numpyro.distributions.distribution
    return distribution._VALIDATION_ENABLED, list(numpyro.primitives._PYRO_STACK)


@fault(GROUP, "three engines in three threads, with parameters of one name", RUNS)
def _threads(trial: Trial) -> None:
    values = (1.0, 2.0, 3.0)
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    before = validation_of(trial.backend)

    def fit(found: dict[float, Any], value: float) -> None:
        engine = trial.svgd(mean_with_parameter(trial.backend, value))
        state, _ = verbs.run(engine, 20)
        found[value] = verbs.samples(engine, state)["mu"].tolist()

    alone: dict[float, Any] = {}
    together: dict[float, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.public.HeldParameterWarning)
        for value in values:
            fit(alone, value)
        in_threads([partial(fit, together, value) for value in values])
    assert together == alone
    assert len({str(each) for each in alone.values()}) == len(values)
    assert validation_of(trial.backend) == before


@fault(GROUP, "one engine that runs in two threads", RUNS, pyro="the second is refused")
def _one_engine(trial: Trial) -> None:
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    engine = trial.svgd(mean_with_parameter(trial.backend, 0.0))
    found: list[Any] = []

    def run(seconds: float) -> None:
        def wait(*_: Any) -> None:
            started.wait(seconds)

        found.append(verbs.run(engine, 2, callback=wait)[1].losses)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.public.HeldParameterWarning)
        started = threading.Event()
        first = threading.Thread(target=run, args=(20.0,))
        first.start()
        while trial.is_pyro and engine.num_steps_taken == 0:
            started.wait(0.01)
        if trial.is_pyro:
            with trial.refused("one thread at a time.*a second"):
                run(0.0)
        else:
            run(0.0)
        started.set()
        first.join()
    assert all(losses.tolist() == found[0].tolist() for losses in found), found
    assert len(found) == 2 - trial.is_pyro


class Failing:
    """A model that raises at its call of number ``at``, after the engine has been set up."""

    def __init__(self, backend: Any, error: BaseException) -> None:
        self.backend, self.error = backend, error
        self.calls, self.at = 0, -1

    def _called(self, mu: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return np.asarray(mu)

    def __call__(self, y: Any) -> None:
        host, dist, xp = self.backend.host, self.backend.dist, self.backend.xp
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        if self.backend.is_pyro:
            self._called(0.0)
            shift = 0.0
        else:
            import jax

            shape = jax.ShapeDtypeStruct((), xp.result_type(float))
            shift = 0.0 * jax.pure_callback(
                self._called, shape, jax.lax.stop_gradient(mu), vmap_method="sequential"
            )
        with host.plate("rows", len(y), subsample_size=6) as rows:
            host.sample("y", dist.Normal(mu + shift, 1.0), obs=y[rows])


def _reached(trial: Trial, error: BaseException) -> Any:
    return None if trial.is_pyro else error.state  # type: ignore[attr-defined]


def goes_on_exactly(
    verbs: Verbs, make: Callable[[], Any], engine: Any, state: Any, steps: int
) -> int:
    """See that a state is that after so many whole steps, and goes on as if nothing had been.

    ``steps`` are those that the run was to have. Returns those that the state has.
    """
    taken = verbs.taken(engine, state)
    other = make()
    stop = {"callback": lambda step, *_: step == taken, "callback_every": 1}
    whole, _ = verbs.run(other, steps, **stop)
    assert verbs.taken(other, whole) == taken
    assert verbs.algorithm(other, whole) == verbs.algorithm(engine, state)
    state, _ = verbs.run(engine, 3, state)
    whole, _ = verbs.run(other, 3, whole)
    assert verbs.bits(other, whole) == verbs.bits(engine, state)
    return taken


def _fails(name: str, trial: Trial) -> None:
    backend = trial.backend
    model = Failing(backend, OSError("the disk of the data is gone"))
    options = {"evaluation": "handlers"} if backend.is_pyro else {}

    def make() -> Any:
        if name == "SVGD":
            return trial.svgd(model, estimator=trial.public.SAGA(), **options)
        guide = backend.autoguide.AutoDiagonalNormal(model)
        return trial.engine(name, model, guide, **options)

    verbs = Verbs(backend, (backend.array(Y),))
    counted = make()
    state, _ = verbs.run(counted, 2)
    model.calls = 0
    verbs.run(counted, 1, state)
    # Somewhere in the sixth step or the seventh.
    engine, each = make(), model.calls
    state = verbs.start(engine)
    model.calls, model.at = 0, 6 * each
    error_of = OSError if backend.is_pyro else Exception
    with pytest.raises(error_of, match="the disk of the data is gone") as caught:
        state, _ = verbs.run(engine, 20, state)
    assert any("holds the state after step" in note for note in caught.value.__notes__)
    state = _reached(trial, caught.value)
    assert 3 <= goes_on_exactly(verbs, make, engine, state, 20) <= 6 * each


for _name in ("SVGD", "ProximalScoreVI"):
    fault(
        GROUP,
        f"an `OSError` in the model during a step of `{_name}`",
        KEPT,
        numpyro=KEPT_PIECE,
        # The shell keeps the state of either.
        slow=_name == "ProximalScoreVI",
    )(partial(_fails, _name))


@fault(GROUP, "an `OSError` in the optimizer, after the scores of a minibatch", KEPT, numpyro=None)
def _fails_in_the_optimizer(trial: Trial) -> None:
    import torch

    fails: list[int] = []

    class Adam(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            if fails and fails.pop() == 1:
                raise OSError("no memory on the device")
            return super().step(closure)

    def make() -> Any:
        return trial.svgd(
            mean(trial.backend, 10),
            optim=lambda parameters: Adam(parameters, lr=0.05),
            estimator=trial.public.SVRG(anchor_every=3),
        )

    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    engine = make()
    verbs.run(engine, 3)
    # At the fourth step, which has new anchors and the last rows of an order.
    fails.append(1)
    before = verbs.bits(engine, None)
    with pytest.raises(OSError, match="no memory on the device"):
        verbs.run(engine, 5)
    assert verbs.bits(engine, None) == before
    assert goes_on_exactly(verbs, make, engine, None, 10) == 3


def interrupted(verbs: Verbs, engine: Any, seconds: float, **options: Any) -> BaseException:
    """The exception that ends a run that gets Ctrl-C after some seconds."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))

    def first(*_: Any) -> None:
        if not timer.is_alive() and not timer.finished.is_set():
            timer.start()

    with pytest.raises(KeyboardInterrupt) as caught:
        verbs.run(engine, MANY, callback=first, callback_every=1, **options)
    return caught.value


@fault(GROUP, "Ctrl-C in a run", KEPT, numpyro=KEPT_PIECE)
def _interrupt(trial: Trial) -> None:
    make = partial(trial.svgd, mean_with_parameter(trial.backend, 0.0))
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    # A shell that starts something in the background has it ignore Ctrl-C.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    handler = signal.getsignal(signal.SIGINT)
    path: Path = trial.folder / "state"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.public.HeldParameterWarning)
        engine = make()
        try:
            error = interrupted(verbs, engine, 0.05, checkpoint=path)
        finally:
            after = signal.signal(signal.SIGINT, usual)
        state = _reached(trial, error)
        other = make()
        loaded = verbs.load(other, path)
        assert verbs.bits(other, loaded) == verbs.bits(engine, state)
        assert verbs.taken(other, loaded) == verbs.taken(engine, state)
        assert goes_on_exactly(verbs, make, engine, state, MANY) > 0
    assert after is handler


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
import numpyro_ext as nx

def model(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y)

key, y, other = jax.random.key(0), jnp.ones(()), jnp.zeros(())
engine = nx.SVGD(model, numpyro.optim.Adam(0.1), num_particles=2)
fit = nx.fit(key, model, y, progress_bar=False)
uses = [
    lambda: nx.find_start(key, model, y),
    lambda: nx.fit(key, model, y),
    lambda: engine.init(key, y),
    lambda: fit.more(10, progress_bar=False),
    lambda: fit.log_evidence,
    lambda: fit.predict(),
    lambda: fit.refit(other, progress_bar=False),
]
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
refused = 0
for use in uses:
    try:
        use()
    except nx.ArgumentError as error:
        refused += "'spawn'" in str(error)
os._exit(0 if refused == len(uses) else 1)
"""


@fault(GROUP, "a process forked from one that has used JAX", REFUSED, pyro=None)
def _forked(trial: Trial) -> None:
    command = [sys.executable, "-c", FORKED]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=120)
    trial.refusals.append(0)


def _interrupted_at(name: str, trial: Trial) -> None:
    """Globals are whole, and the next answer is that of a process in which nothing happened."""
    backend, public = trial.backend, trial.public
    model, y = mean_with_parameter(backend, 0.0), backend.array(Y)
    key = () if trial.is_pyro else (backend.key(0),)

    def begin() -> Any:
        if name == "find_start":
            return public.find_start(*key, model, y).mean.tolist()
        fit = public.fit(*key, model, y, budget=7_000, progress_bar=False)
        return backend.numpy(fit.draws["mu"]).tolist()

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    came, draws = 0, np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", public.HeldParameterWarning)
        try:
            expected, before = begin(), validation_of(backend)
            began = time.perf_counter()
            begin()
            takes = time.perf_counter() - began
            for _ in range(6):
                try:
                    signal.setitimer(signal.ITIMER_REAL, draws.uniform(0.0, takes))
                    begin()
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
                except KeyboardInterrupt:
                    came += 1
                assert validation_of(backend) == before
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                in_threads([partial(_takes, HOST)])
            assert begin() == expected
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, alarm)
            signal.signal(signal.SIGINT, usual)
    assert came
    if trial.is_pyro:
        import torch

        assert torch.func.vmap(torch.sin)(torch.zeros(3)).tolist() == [0.0] * 3


def _takes(lock: Any) -> None:
    assert lock.acquire(timeout=5.0)
    lock.release()


for _name in ("find_start", "fit"):
    fault(
        GROUP,
        f"Ctrl-C at any moment of `{_name}`",
        "the hosts' globals are as before, and the next call is right",
        slow=_name == "fit",
    )(partial(_interrupted_at, _name))


@fault(GROUP, "an exception in a callback", KEPT, numpyro=KEPT_PIECE)
def _callback(trial: Trial) -> None:
    make = partial(trial.svgd, mean_with_parameter(trial.backend, 0.0))
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))

    def fail(step: int, *_: Any) -> None:
        if step == 4:
            raise LookupError("of the callback")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.public.HeldParameterWarning)
        engine = make()
        with pytest.raises(LookupError) as caught:
            verbs.run(engine, 9, callback=fail, callback_every=2)
        state = _reached(trial, caught.value)
        assert goes_on_exactly(verbs, make, engine, state, 9) == 4


@fault(GROUP, "Ctrl-C between two steps, in a run with a checkpoint", KEPT, numpyro=KEPT_PIECE)
def _between(trial: Trial) -> None:
    make = partial(trial.svgd, mean_with_parameter(trial.backend, 0.0))
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    path: Path = trial.folder / "state"

    def interrupt(step: int, *_: Any) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.public.HeldParameterWarning)
        with pytest.raises(KeyboardInterrupt):
            verbs.run(
                make(), 9, callback=interrupt, callback_every=2, checkpoint=path, checkpoint_every=9
            )
        engine = make()
        assert goes_on_exactly(verbs, make, engine, verbs.load(engine, path), 9) == 4


@fault(GROUP, "an exception while the model is checked", "the next try is as the first")
def _in_the_check(trial: Trial) -> None:
    missing = [True]

    def model(y: Any) -> None:
        mu = trial.backend.host.sample("mu", trial.backend.dist.Normal(0.0, 1.0))
        if missing:
            raise OSError("no data")
        trial.backend.host.sample("y", trial.backend.dist.Normal(mu, 1.0), obs=y[0])

    before = validation_of(trial.backend)
    verbs = Verbs(trial.backend, (trial.backend.array(Y),))
    engine, other = trial.svgd(model), trial.svgd(model)
    for _ in range(2):
        with pytest.raises(OSError, match="no data"):
            verbs.run(engine, 2)
    missing.clear()
    assert validation_of(trial.backend) == before
    found, _ = verbs.run(engine, 2)
    expected, _ = verbs.run(other, 2)
    assert verbs.bits(engine, found) == verbs.bits(other, expected)


SHARED = "the earlier engine is refused from then on; the guide goes on in the later one"


@fault(GROUP, "two engines with one guide object", RUNS, pyro=SHARED)
def _shared_guide(trial: Trial) -> None:
    backend = trial.backend
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    guide = backend.autoguide.AutoDiagonalNormal(model)
    first, second = (trial.engine("ProximalScoreVI", model, guide) for _ in "ab")
    verbs = Verbs(backend, (backend.array(Y),))
    state, _ = verbs.run(first, 3)
    Verbs(backend, (backend.array(Y + 5.0),)).run(second, 3)
    if trial.is_pyro:
        for use in (partial(verbs.run, first, 2), partial(verbs.samples, first, None)):
            with trial.refused("another engine.*has taken it over"):
                use()
        verbs.run(second, 2)
        return
    alone = trial.engine("ProximalScoreVI", model, backend.autoguide.AutoDiagonalNormal(model))
    expected, _ = verbs.run(alone, 6)
    state, _ = verbs.run(first, 3, state)
    assert verbs.bits(alone, expected) == verbs.bits(first, state)


@fault(GROUP, "`torch.inference_mode` and `torch.no_grad` around a run", RUNS, numpyro=None)
def _inference_mode(trial: Trial) -> None:
    import torch

    verbs = Verbs(trial.backend, (trial.backend.array(Y),))

    def model(y: Any) -> None:
        host, dist = trial.backend.host, trial.backend.dist
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    def makers() -> list[Callable[[], Any]]:
        guide = trial.backend.autoguide.AutoDiagonalNormal
        return [
            partial(trial.svgd, model),
            lambda: trial.engine("ProximalScoreVI", model, guide(model)),
        ]

    for make in makers():
        plain = make()
        verbs.run(plain, 6)
        for mode in (torch.inference_mode, torch.no_grad):
            engine = make()
            with mode():
                inside = Verbs(trial.backend, (trial.backend.array(Y) + 0.0,))
                inside.run(engine, 3)
                inside.samples(engine, None)
            inside.run(engine, 1)
            verbs.run(engine, 2)
            assert verbs.bits(engine, None) == verbs.bits(plain, None)
