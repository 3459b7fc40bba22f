"""Programs and calls that a host refuses, or that mean something else than they seem to.

Each is refused before the first step, with the same words in both packages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine_support import Verbs
from tests.stein_support import optimizer

Y = np.linspace(-1.0, 2.0, 40)


def svgd(backend: Any, model: Callable[..., Any]) -> Any:
    """A few particles on that model."""
    seeds = {"seed": 0} if backend.is_pyro else {}
    return backend.public.SVGD(model, optimizer(backend, "adam", 0.05), num_particles=3, **seeds)


def mean(backend: Any, size: int | None = None) -> Callable[[Any], None]:
    """A mean of rows, of which a minibatch has ``size``."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y), subsample_size=size) as rows:
            host.sample("y", dist.Normal(mu, 1.0), obs=y if size is None else y[rows])

    return model


def same_plates(backend: Any) -> Callable[[Any], None]:
    """Two plates of one name."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 10, subsample_size=5) as rows:
            host.sample("x", dist.Normal(mu, 1.0), obs=y[:10][rows])
        with host.plate("rows", 30, subsample_size=5) as rows:
            host.sample("y", dist.Normal(mu, 1.0), obs=y[10:][rows])

    return model


def crossed(backend: Any) -> Callable[[Any], None]:
    """A column of data under a row of means: 40 x 40 observations."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu * backend.xp.ones(40), 1.0), obs=y[:, None])

    return model


def crossed_without_a_plate(backend: Any) -> Callable[[Any], None]:
    """The same without a plate."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        host.sample("y", dist.Normal(mu * backend.xp.ones(40), 1.0), obs=y[:, None])

    return model


PROGRAMS: dict[str, tuple[Callable[[Any], Callable[..., None]], str]] = {
    "minibatches of no rows": (lambda b: mean(b, 0), r"subsample_size=0\. Expected from 1 to 40"),
    "of fewer": (lambda b: mean(b, -3), r"subsample_size=-3\. Expected from 1 to 40"),
    "of more than there are": (lambda b: mean(b, 41), r"subsample_size=41\. Expected from 1 to 40"),
    "two plates of one name": (same_plates, "Multiple plates are named.*rows"),
    "a column under a row": (crossed, r"invalid log_prob shape.*\(40, 40\)"),
    "the same without a plate": (crossed_without_a_plate, r"invalid log_prob shape.*\(40, 40\)"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_refused_before_the_first_step(backend: Any, program: str) -> None:
    make, words = PROGRAMS[program]
    verbs, calls = Verbs(backend, (backend.array(Y),)), []
    with pytest.raises(backend.public.ModelCheckError, match=words):
        verbs.run(svgd(backend, make(backend)), 3, callback=lambda i, *_: calls.append(i))
    assert not calls


def test_what_looks_like_them_is_taken(backend: Any) -> None:
    """Minibatches of all rows, data that every group sees, one plate used twice."""
    host, dist = backend.host, backend.dist

    def groups(y: Any) -> None:
        with host.plate("groups", 3, dim=-2):
            mu = host.sample("mu", dist.Normal(0.0, 10.0))
            with host.plate("rows", 40, dim=-1):
                host.sample("y", dist.Normal(mu, 1.0), obs=y)

    def twice(y: Any) -> None:
        rows = host.plate("rows", 40)
        with rows:
            a = host.sample("a", dist.Normal(0.0, 1.0))
        with rows:
            host.sample("y", dist.Normal(a, 1.0), obs=y)

    def number(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(backend.xp.zeros(3), 10.0).to_event(1))
        host.sample("one", dist.Normal(mu, 1.0).to_event(1), obs=y[:3])
        host.sample("all", dist.Normal(mu[0], 1.0), obs=y)
        host.sample("same", dist.Normal(mu, 1.0), obs=y[0])

    for model in (mean(backend, 40), groups, twice, number):
        verbs = Verbs(backend, (backend.array(Y),))
        _, result = verbs.run(svgd(backend, model), 2)
        assert np.isfinite(result.losses).all()


def test_arguments_that_run_would_take_for_itself_are_refused(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def model(y: Any, callback: float = 1.0, checkpoint: float = 1.0) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, callback * checkpoint), obs=y)

    verbs = Verbs(backend, (backend.array(Y),))
    error = backend.public.ArgumentError
    for option in ({"callback": lambda *_: None}, {"checkpoint": 2.0}):
        with pytest.raises(error, match=r"parameters of the model as well.*functools\.partial"):
            verbs.run(svgd(backend, model), 2, **option)
    verbs.run(svgd(backend, model), 2)
    bound, calls = functools.partial(model, callback=2.0), []
    verbs.run(svgd(backend, bound), 2, callback=lambda i, *_: calls.append(i))
    assert calls == [1, 2]
