"""Processes of ``torch.distributed`` that run jobs of :mod:`tests.sharding.pyro_jobs` together."""

from __future__ import annotations

import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import torch

#: Seconds that a group of processes may take.
PATIENCE = 600.0


def run(folder: Path, size: int, jobs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What each of so many processes found: by job, its result or the words of its error.

    Parameters
    ----------
    folder : Path
        An empty one.
    size : int
    jobs : dict of str to dict
        By label, the options of a job; its entry ``job`` names a function of ``pyro_jobs``, and
        ``judged`` has its runs end with a judgement, which takes longer than their few steps.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sharding.pyro_jobs"])
    processes = [
        context.Process(target=_work, args=(rank, size, str(folder), jobs)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
    return [torch.load(path) if path.exists() else {} for path in _paths(folder, size)]


def _paths(folder: Path, size: int) -> list[Path]:
    return [folder / f"found{rank}" for rank in range(size)]


def _work(rank: int, size: int, folder: str, jobs: dict[str, dict[str, Any]]) -> None:
    import torch.distributed as dist

    from ppl_ext.engines.base import EngineShell
    from tests.sharding import pyro_jobs

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    found: dict[str, Any] = {}
    for label, options in jobs.items():
        given = dict(options)
        EngineShell._judges = given.pop("judged", False)
        job = getattr(pyro_jobs, given.pop("job"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[label] = job(rank, Path(folder), **given)
            except Exception as error:  # noqa: BLE001 the test looks at it
                found[label] = f"{type(error).__name__}: {error}"
        torch.save(found, _paths(Path(folder), size)[rank])
    dist.destroy_process_group()
