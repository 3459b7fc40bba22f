"""Ctrl-C at chosen lines of whatever swaps a global, in the public entry points of both packages.

A first call of an entry point notes the lines that it runs of code that changes what a process
shares: the hosts' handlers and parameter stores, what is validated, contexts of torch and of JAX,
the filters of warnings, and the library's own `process`. Then Ctrl-C comes at one of them in each
round. Afterwards everything must be as before, and the next answer that of a process in which
nothing has happened.
"""

from __future__ import annotations

import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from ppl_ext import process
from ppl_ext.process import HOST
from tests.engine_support import Verbs
from tests.faults.process import in_threads, validation_of
from tests.stein_support import optimizer

#: Files with whatever swaps a global, by the end of their path.
SWAP = (
    "/ppl_ext/process.py",
    "_ext/density/handlers.py",
    "_ext/density/arguments.py",
    "/pyro/poutine/messenger.py",
    "/pyro/poutine/runtime.py",
    "/pyro/params/param_store.py",
    "/pyro/settings.py",
    "/torch/random.py",
    "/torch/_functorch/pyfunctorch.py",
    "/torch/_functorch/vmap.py",
    "/torch/autograd/grad_mode.py",
    "/torch/utils/_python_dispatch.py",
    "/torch/overrides.py",
    "/numpyro/primitives.py",
    "/numpyro/distributions/distribution.py",
    "/jax/_src/config.py",
    "/contextlib.py",
    "/warnings.py",
)
Y = np.linspace(-1.0, 2.0, 12)
Line = tuple[str, int]


class Lines:
    """Counts lines of that code as they run, and presses Ctrl-C at one.

    Parameters
    ----------
    at : tuple of str and int, optional
        File and line.
    number : int
        How often the line must have come.
    """

    def __init__(self, at: Line | None = None, number: int = 1) -> None:
        self.at, self.number = at, number
        self.seen: Counter[Line] = Counter()
        self._swaps: dict[str, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        swaps = self._swaps.get(name)
        if swaps is None:
            swaps = self._swaps[name] = name.endswith(SWAP)
        return self.line if swaps else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            self.seen[line] += 1
            if line == self.at and self.seen[line] == self.number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self.line

    def follow(self, work: Callable[[], Any]) -> Any:
        """What ``work`` returns, with its lines counted."""
        sys.settrace(self)
        try:
            return work()
        finally:
            sys.settrace(None)


def globals_of(backend: Any) -> tuple[Any, ...]:
    """What a process shares, and whether what it needs works."""
    shared = (
        *validation_of(backend),
        list(warnings.filters),
        warnings.showwarning,
        signal.getsignal(signal.SIGINT),
        np.geterr(),
        process._interrupt.depth,
        process._interrupt.locks,
        process._interrupt.held,
        process._interrupt.pending,
    )
    in_threads([_takes])
    if backend.is_pyro:
        import torch

        mapped = torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(3)).tolist()
        return *shared, mapped, torch.is_grad_enabled(), torch.get_default_dtype()
    import jax
    import numpyro

    mapped = jax.vmap(jax.grad(jax.numpy.sin))(np.zeros(3)).tolist()
    config: Any = jax.config
    return *shared, mapped, config.jax_enable_x64, numpyro.primitives._masked_observe


def _takes() -> None:
    assert HOST.acquire(timeout=5.0)
    HOST.release()


def entries(backend: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Calls of public entry points by name, each of which makes all that it changes anew."""
    public, y = backend.public, backend.array(Y)
    key = () if backend.is_pyro else (backend.key(0),)
    seeds = {"seed": 0} if backend.is_pyro else {"rng_key": backend.key(0)}
    quiet: dict[str, Any] = {"progress_bar": False}

    def model() -> Any:
        host, dist = backend.host, backend.dist

        def program(y: Any) -> None:
            centre = host.param("centre", backend.array(0.0))
            mu = host.sample("mu", dist.Normal(centre, 1.0))
            with host.plate("rows", len(y)):
                host.sample("y", dist.Normal(mu, 1.0), obs=y)

        return program

    def draws_of(found: Any) -> Any:
        return {name: backend.numpy(each).tolist() for name, each in found.items()}

    def run(name: str, *parts: Callable[[Any], Any], steps: int = 3, **options: Any) -> Any:
        program = model()
        if backend.is_pyro:
            options |= {"seed": 0}
        engine = getattr(public, name)(program, *(part(program) for part in parts), **options)
        verbs = Verbs(backend, (y,))
        state, _ = verbs.run(engine, steps)
        return verbs.samples(engine, state, None if name.startswith("SV") else 5)["mu"].tolist()

    def adam(_: Any) -> Any:
        return optimizer(backend, "adam", 0.05)

    def guide(program: Any) -> Any:
        return backend.autoguide.AutoDiagonalNormal(program)

    fit = public.fit(*key, model(), y, budget=2_000, **quiet)
    draws = {"mu": backend.array(np.random.default_rng(0).normal(0.46, 0.28, 200))}
    fitted = public.GSM(model(), **({"seed": 0} if backend.is_pyro else {}))
    fitted_state, _ = Verbs(backend, (y,)).run(fitted, 5)
    state = () if backend.is_pyro else (fitted_state,)

    def warm() -> Any:
        found = public.warm_chains(
            *key, model(), fit, y, num_samples=10, num_warmup=10, num_chains=2, **quiet
        )
        return draws_of(found.get_samples())

    def check() -> Any:
        found = public.check(*key, draws, model(), y, budget=2_000, **quiet)
        return found.level, found.reasons

    saved = folder / "fit"
    public.fit(*key, model(), y, **quiet).save(saved)

    def loaded() -> Any:
        return public.load_fit(saved, model(), y)

    def more() -> Any:
        found = loaded().more(50, **quiet)
        return draws_of(found.draws), found.log_evidence.value

    def kernel() -> Any:
        made = public.SGLD(model(), 1e-5)
        if backend.is_pyro:
            import torch

            chains = public.MCMC(made, num_samples=5, warmup_steps=0, disable_progbar=True)
            generator = torch.get_rng_state()
            torch.manual_seed(0)
            try:
                chains.run(y)
            finally:
                torch.set_rng_state(generator)
        else:
            from numpyro.infer import MCMC

            chains = MCMC(made, num_warmup=0, num_samples=5, progress_bar=False)
            chains.run(*key, y)
        return draws_of(chains.get_samples())

    def table() -> Any:
        found = public.to_arviz(fit, y) if backend.is_pyro else public.to_arviz(fit, None, y)
        return float(found.log_likelihood["y"].sum())

    return {
        "LogDensity": lambda: backend.target(model(), (y,))[0].dim,
        "find_start": lambda: public.find_start(*key, model(), y).mean.tolist(),
        "fit": lambda: draws_of(public.fit(*key, model(), y, budget=2_000, **quiet).draws),
        "check": check,
        "warm_chains": warm,
        "more": more,
        "predict": lambda: draws_of(loaded().predict(num_samples=50)),
        "SVGD": partial(run, "SVGD", adam, num_particles=3),
        "SVN": partial(run, "SVN", num_particles=3),
        "ProximalScoreVI": partial(run, "ProximalScoreVI", guide),
        "GSM": partial(run, "GSM"),
        "LaplaceGGN": partial(run, "LaplaceGGN", adam, steps=30),
        "SGLD": kernel,
        "elbo": lambda: float(public.elbo(fitted, *state, args=(y,), **seeds).value),
        "psis_khat": lambda: float(public.psis_khat(fitted, *state, args=(y,), **seeds).khat),
        "ksd": lambda: float(public.ksd(fitted, *state, args=(y,), num_samples=50, **seeds).value),
        "predictive_distribution": lambda: public.predictive_distribution(
            model(), draws, y, **seeds
        ).to_dict(),
        "to_arviz": table,
    }


NAMES = (
    "LogDensity", "find_start", "fit", "check", "warm_chains", "more", "predict", "SVGD", "SVN",
    "ProximalScoreVI", "GSM", "LaplaceGGN", "SGLD", "elbo", "psis_khat", "ksd",
    "predictive_distribution", "to_arviz",
)  # fmt: skip


@pytest.fixture
def _usual_handler() -> Iterator[None]:
    # A shell that starts something in the background has it ignore Ctrl-C.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    signal.signal(signal.SIGINT, usual)


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.library_start
@pytest.mark.usefixtures("_usual_handler")
@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_at_any_line_that_swaps_leaves_globals_whole(
    backend: Any, name: str, tmp_path: Path
) -> None:
    rounds, choice, came = 16, random.Random(name), 0
    call = entries(backend, tmp_path)[name]
    expected = call()
    lines = Lines()
    assert lines.follow(call) == expected
    before = globals_of(backend)
    for number in range(rounds):
        at = choice.choice(sorted(lines.seen))
        pressed = Lines(at, choice.randint(1, lines.seen[at]))
        try:
            pressed.follow(call)
        except KeyboardInterrupt:
            came += 1
        where = f"{name}, round {number}: {at[0]}:{at[1]}, time {pressed.number}"
        assert globals_of(backend) == before, where
        assert call() == expected, where
    assert came > rounds // 2, came
