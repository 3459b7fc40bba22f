"""One process of the NumPyro half: engines on so many forced devices, or one of several processes.

`python -m benchmarks.scaling.numpyro_worker JSON` prints a line of JSON for each engine and layout,
or runs until it is killed, see `numpyro_runs`.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import autoguide

import numpyro_ext as nx
from benchmarks.scaling.collectives import collectives
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


def model(x: Any, y: Any) -> None:
    """A linear regression with D weights."""
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    weights = numpyro.sample("w", prior)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


def data(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of standard Normals, and what the first column tells."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, columns)).astype(np.float32)
    return x, (x[:, 0] + generator.normal(size=ROWS)).astype(np.float32)


def descent() -> Any:
    """Plain steps: Adam's first ones divide by the size of a score, and so magnify rounding."""
    return optax.sgd(1e-4)


def made(name: str, **options: Any) -> Any:
    """An engine on the regression."""
    return make(name, nx, model, descent(), partial(getattr, autoguide), **options)


def measured(name: str, devices: int, folder: str) -> list[dict[str, Any]]:
    """Lines on one engine; its parameters go to a file, or are compared with those in it."""
    columns, lines = ENGINES[name], []
    for layout, options in layouts(name, devices):
        sharding = None
        if options:
            sharding = nx.Sharding(jax.make_mesh(*mesh_of(devices, options)), **options)
        engine = made(name, sharding=sharding)
        settings = {"progress_bar": False, "start": "host"}
        result = engine.run(jax.random.key(0), STEPS, *data(columns), **settings)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result.params)]
        figures: dict[str, Any] = {}
        path = f"{folder}/{name}.npz"
        if devices == 1:
            np.savez(path, *leaves)
        else:
            with np.load(path) as kept:
                pairs = list(zip(leaves, kept.values(), strict=True))
            apart = [np.max(np.abs(a - b) / np.maximum(np.abs(b), 1.0)) for a, b in pairs]
            figures["difference from one device"] = float(max(apart))
        figures |= _program(engine, result.state, devices)
        exchange = options.get("exchange", "all-gather")
        line = settings_of(name, layout, devices, 4, exchange)
        lines.append({"settings": line, "figures": figures})
    return lines


def _program(engine: Any, state: Any, devices: int) -> dict[str, Any]:
    """What the compiled program of a step moves, computes and holds on each device."""
    bound = engine._require_bound()
    compiled = bound.update.jitted.trace(state, bound.data).lower().compile()
    moved = collectives(compiled.as_text(), devices)
    return {
        "collectives": [[each.kind, each.numbers, each.group] for each in moved],
        "numbers moved": sum(each.numbers for each in moved),
        "bytes sent by a device": sum(each.sent for each in moved),
        "operations of a device": compiled.cost_analysis().get("flops"),
        "bytes of workspace": compiled.memory_analysis().temp_size_in_bytes,
    }


def killed(process: int, port: int, path: str, steps: int) -> None:
    """One of two processes: go on from the file to the end, and say so."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}",
        2,
        process,
        heartbeat_timeout_seconds=15,
        shutdown_timeout_seconds=15,
    )
    sharding = nx.Sharding(jax.make_mesh((2,), ("p",)), "p", timeout=20.0)
    engine = made("SVGD", sharding=sharding)
    arguments, state, taken = data(FEW), None, 0
    try:
        state = engine.load(path, *arguments)
        taken = int(state.step)
    except FileNotFoundError:
        pass

    def tell(step: int, *_: Any) -> None:
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
        time.sleep(0.02)

    options: dict[str, Any] = {} if state is None else {"init_state": state}
    options |= {"checkpoint": path, "checkpoint_every": 5, "callback": tell, "callback_every": 1}
    options["progress_bar"] = False
    result = engine.run(jax.random.key(0), steps - taken, *arguments, **options)
    particles = sharding.on_host(result.params["particles"])
    sys.stdout.write(f"end {np.asarray(particles).tobytes().hex()[:4096]}\n")
    sys.stdout.flush()


def main(options: dict[str, Any]) -> None:
    """Do what is asked for."""
    if "process" in options:
        killed(**options)
        return
    for name in options["engines"]:
        try:
            lines = measured(name, options["devices"], options["folder"])
        except Exception as error:  # noqa: BLE001 - a failure is a result
            lines = [{"settings": {"engine": name, "layout": "", **options}, "error": repr(error)}]
        for line in lines:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
