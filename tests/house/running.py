"""Figures of the packages as they run: depth of classes, calls of a step, frames to a kernel."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import traceback
from types import FrameType
from typing import Any

from tests.test_architecture import ALL, ROOT

PREFIXES = tuple(str(ROOT / package) for package in ALL)


def classes() -> dict[str, type]:
    """Every class of the three packages, by its full name."""
    found = {}
    for package in ALL:
        for module in pkgutil.walk_packages(
            importlib.import_module(package).__path__, package + "."
        ):
            for each in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(each) and _own(each):
                    found[f"{each.__module__}.{each.__qualname__}"] = each
    return found


def _own(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ALL


def depth(kind: type) -> int:
    """The project's classes on the longest way from a class to its oldest ancestor."""
    return _own(kind) + max((depth(base) for base in kind.__bases__), default=0)


def deepest() -> tuple[str, int]:
    """The class with the longest line of ancestors, and their number."""
    found = {name: depth(kind) for name, kind in classes().items()}
    name = max(found, key=lambda one: found[one])
    return name, found[name]


def most_ancestors() -> tuple[str, int]:
    """The class with most of the project's classes above it, and their number."""
    found = {name: sum(map(_own, kind.__mro__)) - 1 for name, kind in classes().items()}
    name = max(found, key=lambda one: found[one])
    return name, found[name]


def calls_of_a_step() -> tuple[int, int, int]:
    """Own calls of one warm step of Pyro's ``SVGD`` on a small model, their depth and files."""
    import pyro
    import pyro.distributions as dist
    import torch

    import pyro_ext as px

    data = torch.arange(5.0)

    def model(y: Any) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.01}), num_particles=10, seed=0)
    for _ in range(20):
        engine.step(data)
    calls, deepest_call, level = 0, 0, 0
    files = set()

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls, deepest_call, level
        if not frame.f_code.co_filename.startswith(PREFIXES):
            return
        if event == "call":
            calls += 1
            level += 1
            deepest_call = max(deepest_call, level)
            files.add(frame.f_code.co_filename)
        elif event == "return":
            level -= 1

    sys.setprofile(count)
    try:
        engine.step(data)
    finally:
        sys.setprofile(None)
    return calls, deepest_call, len(files)


def frames_to_a_kernel() -> tuple[int, int]:
    """Own frames, and their files, from NumPyro's ``SVGD.run`` to the arithmetic of its kernel."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import numpyro_ext as nx

    def model(y: Any) -> None:
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    most, number = 0, 0
    kernel = nx.RBF()
    plain = type(kernel).direction

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal most, number
        if event == "call" and frame.f_code.co_filename.startswith(PREFIXES):
            stack = [one.f_code.co_filename for one, _ in traceback.walk_stack(frame)]
            own = [file for file in stack if file.startswith(PREFIXES)]
            if len(own) > most:
                most, number = len(own), len(set(own))

    def direction(self: Any, *args: Any, **kwargs: Any) -> Any:
        sys.setprofile(look)
        try:
            return plain(self, *args, **kwargs)
        finally:
            sys.setprofile(None)

    type(kernel).direction = direction  # type: ignore[method-assign]
    try:
        engine = nx.SVGD(model, numpyro.optim.Adam(0.01), kernel, num_particles=10)
        engine.run(jax.random.key(0), 3, jnp.arange(5.0), progress_bar=False)
    finally:
        type(kernel).direction = plain  # type: ignore[method-assign]
    return most, number
