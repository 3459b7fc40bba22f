"""Two workers of Ray in one run; one kills itself once, and both start again.

    python -m tests.sharding.ray_job pyro|numpyro FOLDER

`FOLDER` gets the draws, and files that say when a worker was killed and where the next ones went
on. It is the script of the page "Many devices", with a model, and with the kill.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

STEPS, KILLED_AT = 60, 35


def data() -> tuple[np.ndarray, np.ndarray]:
    """Rows and what was observed of them."""
    x = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
    return x, x @ np.float32([1.0, -2.0, 0.5])


def kill_once(step: int, folder: Path) -> None:
    """End this process as a machine that is lost does, the first time that it comes here."""
    killed = folder / "killed"
    if step >= KILLED_AT and not killed.exists():
        killed.write_text(str(step))
        os.kill(os.getpid(), signal.SIGKILL)


def pyro_from_checkpoint(sharding: Any, folder: Path, kills: bool = False) -> None:
    """Pyro's run, from its checkpoint where there is one; draws to a file."""
    import pyro
    import pyro.distributions as dist
    import torch

    import pyro_ext as px

    def model(x: Any, y: Any) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    def callback(step: int, engine: Any, info: Any) -> None:
        if kills and not sharding.writes:
            kill_once(step, folder)

    state = folder / "state.npz"
    optim = pyro.optim.Adam({"lr": 0.05})
    engine = px.SVGD(model, optim, num_particles=8, seed=0, sharding=sharding)
    if state.exists():
        engine.load(state)
        (folder / "resumed").write_text(str(engine.num_steps_taken))
    engine.run(
        STEPS - engine.num_steps_taken,
        *map(torch.as_tensor, data()),
        progress_bar=False,
        checkpoint=state,
        checkpoint_every=10,
        callback=callback,
        callback_every=5,
    )
    draws = engine.get_samples()["w"]
    if sharding is None or sharding.writes:
        np.save(folder / "draws.npy", draws.numpy())


def numpyro_from_checkpoint(sharding: Any, folder: Path, kills: bool = False) -> None:
    """NumPyro's run, from its checkpoint where there is one; draws to a file."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    import optax

    import numpyro_ext as nx

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    def callback(step: int, state: Any, info: Any) -> None:
        if kills and jax.process_index() == 1:
            kill_once(step, folder)

    path, (x, y) = folder / "state.npz", data()
    engine = nx.SVGD(model, optax.adam(0.05), num_particles=8, sharding=sharding)
    state = engine.load(path, x, y) if path.exists() else None
    taken = 0 if state is None else int(state.step)
    if taken:
        (folder / "resumed").write_text(str(taken))
    result = engine.run(
        jax.random.key(0),
        STEPS - taken,
        x,
        y,
        init_state=state,
        progress_bar=False,
        checkpoint=path,
        checkpoint_every=10,
        callback=callback,
        callback_every=5,
    )
    draws = engine.get_samples(result.state)["w"]
    if jax.process_index() == 0:
        np.save(folder / "draws.npy", np.asarray(draws))


def train_pyro(rank: int, address: str, folder: str) -> None:
    """One worker of Pyro's run, in a process of its own."""
    from torch.distributed import init_process_group
    from torch.distributed.device_mesh import init_device_mesh

    import pyro_ext as px

    init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("p",))
    pyro_from_checkpoint(px.Sharding(mesh, particles="p"), Path(folder), kills=True)


def train_numpyro(rank: int, address: str, folder: str) -> None:
    """One worker of NumPyro's run, in a process of its own."""
    import jax

    import numpyro_ext as nx

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, 2, rank, heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20
    )
    sharding = nx.Sharding(jax.make_mesh((2,), ("p",)), particles="p")
    numpyro_from_checkpoint(sharding, Path(folder), kills=True)


def main(package: str, folder: str) -> None:
    """Start the workers, and again when one is lost."""
    import socket

    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    train = {"pyro": train_pyro, "numpyro": train_numpyro}[package]
    # A process for each call: a process group is made once in a process.
    worker = ray.remote(num_cpus=1, max_retries=0, max_calls=1)(train)
    for _ in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        jobs = [worker.remote(rank, address, folder) for rank in range(2)]
        try:
            ray.get(jobs)
            break
        except ray.exceptions.RayError as error:
            print(f"lost a worker: {type(error).__name__}", flush=True)
            ray.wait(jobs, num_returns=2)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
