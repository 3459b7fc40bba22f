"""What one process of the Pyro half does: engines over several processes, or a run to be killed."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
import torch.distributed
from pyro.infer import autoguide
from torch.distributed.device_mesh import init_device_mesh

import pyro_ext as px
from benchmarks.scaling.problem import (
    ENGINES,
    FEW,
    ROWS,
    STEPS,
    layouts,
    make,
    mesh_of,
    settings_of,
)

#: Seconds that processes wait for each other.
TIMEOUT = 20.0


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    """A linear regression with D weights."""
    weights = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    # A plate whose rows are looked up, which `Full` takes all of in every step.
    with pyro.plate("rows", len(x), subsample_size=len(x) // 2) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ weights, 1.0), obs=y[rows])


def data(columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of standard Normals, and what the first column tells."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, columns))
    y = x[:, 0] + generator.normal(size=ROWS)
    return torch.as_tensor(x, dtype=dtype), torch.as_tensor(y, dtype=dtype)


def _adam() -> Any:
    return pyro.optim.Adam({"lr": 0.01})


def made(name: str, **options: Any) -> Any:
    """An engine on the regression."""

    def guide(kind: str) -> Any:
        return getattr(autoguide, kind)(model)

    return make(name, px, model, _adam(), guide, (_adam(),), **options)


def _started(rank: int, size: int, store: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    address = f"file://{store}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)


def _sharding(devices: int, options: dict[str, Any], **more: Any) -> px.Sharding | None:
    if not options:
        return None
    shape, names = mesh_of(devices, options)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return px.Sharding(mesh, **options, **more)


def measure(
    rank: int, size: int, store: str, folder: str, engines: list[str], tell: Callable[[Any], None]
) -> None:
    """Tell settings and figures of each engine and layout over so many processes.

    What one process finds goes to a file, with which others compare. Figures are those of double
    precision; in single precision Adam and the closed forms make rounding larger, which is told
    beside.
    """
    _started(rank, size, store)
    for name in engines:
        for layout, options in layouts(name, size):
            exchange = options.get("exchange", "all-gather")
            line = settings_of(name, layout, size, 8, exchange)
            found: dict[str, Any] = {"settings": line}
            try:
                sharding = _sharding(size, options)
                single = _measured(name, sharding, folder, torch.float32)
                found["figures"] = _measured(name, sharding, folder, torch.float64)
                if sharding is not None:
                    apart = single["difference from one device"]
                    found["figures"]["difference in single precision"] = apart
            except Exception as error:  # noqa: BLE001 a failure is a result
                found["error"] = repr(error)
            if rank == 0:
                tell(found)
    torch.distributed.destroy_process_group()


def _measured(
    name: str, sharding: px.Sharding | None, folder: str, dtype: torch.dtype
) -> dict[str, Any]:
    torch.set_default_dtype(dtype)
    arguments = data(ENGINES[name], dtype)
    engine = made(name, seed=0, sharding=sharding, estimator=px.Full())
    engine.run(STEPS, *arguments, start="host", progress_bar=False)
    leaves = [value.detach() for value in _parameters(engine)]
    path = f"{folder}/{name} {dtype}"
    if sharding is None:
        torch.save(leaves, path)
        return {}
    expected = torch.load(path)
    apart = [
        float(((own - one).abs() / one.abs().clamp_min(1.0)).max())
        for own, one in zip(leaves, expected, strict=True)
    ]
    sharding.traffic.clear()
    engine.step(*arguments)
    traffic = sharding.traffic
    return {
        "difference from one device": max(apart),
        "collectives": [
            [kind, traffic.numbers[kind], traffic.calls[kind]] for kind in traffic.numbers
        ],
        "numbers moved": sum(traffic.numbers.values()),
        "bytes sent by a device": float(traffic.sent),
    }


def _parameters(engine: Any) -> list[torch.Tensor]:
    if hasattr(engine, "num_particles"):
        return [engine.particles]
    return list(engine.parameters.values())


def run(
    rank: int, size: int, store: str, path: str, steps: int, tell: Callable[[Any], None]
) -> None:
    """One of several processes: go on from the file to the end of a run, and say so."""
    _started(rank, size, store)
    sharding = _sharding(size, {"particles": "p"}, timeout=TIMEOUT)
    engine = made("SVGD", seed=0, sharding=sharding)
    arguments = data(FEW)
    if os.path.exists(path):
        engine.load(path)
    began = False

    def callback(step: int, *_: Any) -> None:
        nonlocal began
        if not began:
            tell(("step", step))
        began = True
        time.sleep(0.02)

    try:
        engine.run(
            steps - engine.num_steps_taken,
            *arguments,
            start=None if engine.num_steps_taken else "host",
            checkpoint=path,
            checkpoint_every=5,
            callback=callback,
            callback_every=1,
            progress_bar=False,
        )
    except px.RankLostError as error:
        tell(("lost", f"{type(error).__name__}: {error}"))
        raise
    particles = engine.particles.numpy().tobytes()
    tell(("end", hashlib.blake2b(particles, digest_size=16).hexdigest()))
    torch.distributed.destroy_process_group()
