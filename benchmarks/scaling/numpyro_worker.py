"""One process of the NumPyro half: engines on so many forced devices, or one of several processes.

`python -m benchmarks.scaling.numpyro_worker JSON` prints a line of JSON for each engine and layout,
or runs until it is killed, see `numpyro_runs`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal

import numpyro_ext as nx
from benchmarks.scaling.collectives import collectives

#: Rows, particles or draws of a step, and steps of a run.
ROWS, PARTICLES, STEPS = 256, 16, 5
#: Columns, which are the D weights: few for engines that solve systems of D or P D equations.
MANY, FEW = 1000, 20


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


Make = Callable[..., Any]
ENGINES: dict[str, tuple[int, Make]] = {
    "SVGD": (MANY, lambda **k: nx.SVGD(model, descent(), num_particles=PARTICLES, **k)),
    "WGD": (MANY, lambda **k: nx.WGD(model, descent(), num_particles=PARTICLES, **k)),
    "DeepEnsemble": (
        MANY,
        lambda **k: nx.DeepEnsemble(model, descent(), num_particles=PARTICLES, **k),
    ),
    "SVN": (FEW, lambda **k: nx.SVN(model, num_particles=PARTICLES, **k)),
    "ProximalScoreVI": (
        MANY,
        lambda **k: nx.ProximalScoreVI(
            model, AutoDiagonalNormal, solver=nx.Regression(num_samples=PARTICLES), **k
        ),
    ),
    "FisherVI": (
        MANY,
        lambda **k: nx.FisherVI(model, AutoDiagonalNormal, num_samples=PARTICLES, **k),
    ),
    "GSM": (FEW, lambda **k: nx.GSM(model, AutoMultivariateNormal, num_samples=PARTICLES, **k)),
    "BaM": (FEW, lambda **k: nx.BaM(model, AutoMultivariateNormal, num_samples=PARTICLES, **k)),
    "LaplaceGGN": (FEW, lambda **k: nx.LaplaceGGN(model, descent(), **k)),
}
#: Engines whose particles see each other, which have two ways of exchange.
EXCHANGING = ("SVGD", "WGD")


def layouts(name: str, devices: int) -> list[tuple[str, dict[str, Any]]]:
    """Layouts of an engine over so many devices: names, and options of the Sharding."""
    if devices == 1:
        return [("one device", {})]
    found: list[tuple[str, dict[str, Any]]] = [("rows", {"rows": "d"})]
    if name != "LaplaceGGN":
        found.append(("particles", {"particles": "p"}))
    if name in EXCHANGING:
        found.append(("particles, all to all", {"particles": "p", "exchange": "all-to-all"}))
    if devices == 4:
        found.append(("particles and rows", {"particles": "p", "rows": "d"}))
    return found


def _mesh(devices: int, options: dict[str, Any]) -> Any:
    names = tuple(options[each] for each in ("particles", "rows") if each in options)
    shape = (devices,) if len(names) == 1 else (devices // 2, 2)
    return jax.make_mesh(shape, names)


def measured(name: str, devices: int, folder: str) -> list[dict[str, Any]]:
    """Lines on one engine; its parameters go to a file, or are compared with those in it."""
    columns, make = ENGINES[name]
    lines = []
    for layout, options in layouts(name, devices):
        sharding = nx.Sharding(_mesh(devices, options), **options) if options else None
        engine = make(sharding=sharding)
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
        line = {"engine": name, "layout": layout, "devices": devices, "rows": ROWS}
        line |= {"particles": PARTICLES, "dim": columns, "bytes of a number": 4}
        line["exchange"] = options.get("exchange", "all-gather")
        lines.append({"settings": line, "figures": figures})
    return lines


def _program(engine: Any, state: Any, devices: int) -> dict[str, Any]:
    """What the compiled program of a step moves, computes and holds on each device."""
    bound = engine._require_bound()
    compiled = bound.update.traced(state, bound.data).lower().compile()
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
    engine = ENGINES["SVGD"][1](sharding=sharding)
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
