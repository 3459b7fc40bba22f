"""Two workers of Ray in one process group; one kills itself once, and both start again.

    python -m tests.sharding.ray_job FOLDER

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


def run_from_checkpoint(sharding: Any, folder: Path, kills: bool = False) -> None:
    """The run, from its checkpoint where there is one; draws to a file."""
    import pyro
    import pyro.distributions as dist
    import torch

    import pyro_ext as px

    def model(x: Any, y: Any) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    def callback(step: int, engine: Any, info: Any) -> None:
        if kills and step >= KILLED_AT and not killed.exists() and not sharding.writes:
            killed.write_text(str(step))
            os.kill(os.getpid(), signal.SIGKILL)

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    state, killed = folder / "state.npz", folder / "killed"
    optim = pyro.optim.Adam({"lr": 0.05})
    engine = px.SVGD(model, optim, num_particles=8, seed=0, sharding=sharding)
    if state.exists():
        engine.load(state)
        (folder / "resumed").write_text(str(engine.num_steps_taken))
    engine.run(
        STEPS - engine.num_steps_taken,
        x,
        y,
        progress_bar=False,
        checkpoint=state,
        checkpoint_every=10,
        callback=callback,
        callback_every=5,
    )
    draws = engine.get_samples()["w"]
    if sharding is None or sharding.writes:
        np.save(folder / "draws.npy", draws.numpy())


def train(rank: int, address: str, folder: str) -> None:
    """One worker, in a process of its own."""
    from torch.distributed import init_process_group
    from torch.distributed.device_mesh import init_device_mesh

    import pyro_ext as px

    init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("p",))
    run_from_checkpoint(px.Sharding(mesh, particles="p"), Path(folder), kills=True)


def main() -> None:
    """Start the workers, and again when one is lost."""
    import socket

    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    # A process for each call: a process group is made once in a process.
    worker = ray.remote(num_cpus=1, max_retries=0, max_calls=1)(train)
    for _ in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        jobs = [worker.remote(rank, address, sys.argv[1]) for rank in range(2)]
        try:
            ray.get(jobs)
            break
        except ray.exceptions.RayError as error:
            print(f"lost a worker: {type(error).__name__}", flush=True)
            ray.wait(jobs, num_returns=2)
    ray.shutdown()


if __name__ == "__main__":
    main()
