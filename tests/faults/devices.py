"""How particles and rows are split over devices, told wrongly."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ppl_ext.running.sharding import ShardingShell
from tests.faults.programs import Y, mean
from tests.faults.table import REFUSED, RUNS, Trial, fault
from tests.stein_support import optimizer

GROUP = "Devices"


@contextmanager
def mesh(trial: Trial) -> Iterator[Any]:
    """A mesh of this process's one device, with the axes "p" and "d"."""
    if not trial.is_pyro:
        import jax

        yield jax.make_mesh((1, 1), ("p", "d"))
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("p", "d"))
    finally:
        dist.destroy_process_group()


@contextmanager
def pretended(trial: Trial, parts: int, **axes: str) -> Iterator[Any]:
    """A sharding whose axes are said to have so many parts."""
    with mesh(trial) as grid:
        sharding = trial.public.Sharding(grid, **axes)
        sharding._sizes = dict.fromkeys(sharding._sizes, parts)
        yield sharding


@fault(GROUP, "`sharding=4`, or the name of an axis")
def _no_sharding(trial: Trial) -> None:
    for given in (4, "p"):
        with trial.refused("Expected sharding to be a Sharding, found .*Write Sharding"):
            trial.svgd(mean(trial.backend), sharding=given)


@fault(GROUP, "a `Sharding` of the other package")
def _of_the_other(trial: Trial) -> None:
    class Other(ShardingShell):
        _host, _mesh_form = "another host", "a dict"

        @staticmethod
        def _axes_of(mesh: Any) -> Any:
            return mesh

    with trial.refused("package, found one of another host's"):
        trial.svgd(mean(trial.backend), sharding=Other({"p": 1}, "p"))


@fault(GROUP, "a mesh that is none, such as a number of devices")
def _no_mesh(trial: Trial) -> None:
    with trial.refused("Expected mesh to be a .*, found 4"):
        trial.public.Sharding(4, particles="p")


@fault(GROUP, "an axis that the mesh does not have; none; the same twice")
def _no_axis(trial: Trial) -> None:
    with mesh(trial) as grid:
        with trial.refused(r"one of \['p', 'd'\], found 'q'"):
            trial.public.Sharding(grid, particles="q")
        with trial.refused("found neither"):
            trial.public.Sharding(grid)
        with trial.refused("different axes"):
            trial.public.Sharding(grid, particles="p", rows="p")


@fault(GROUP, "particles, or draws of a guide, that do not split evenly")
def _uneven_particles(trial: Trial) -> None:
    with (
        pretended(trial, 2, particles="p") as sharding,
        trial.refused("Expected num_particles to be a multiple of 2.*found 3. Take 4"),
    ):
        trial.run(trial.svgd(mean(trial.backend), sharding=sharding), 3, trial.backend.array(Y))


@fault(GROUP, "rows that do not split evenly", pyro=None)
def _uneven_rows(trial: Trial) -> None:
    with (
        pretended(trial, 3, rows="d") as sharding,
        trial.refused("rows of the data to be a multiple of 3.*found 40. Leave out 1"),
    ):
        trial.run(trial.svgd(mean(trial.backend), sharding=sharding), 3, trial.backend.array(Y))


@fault(GROUP, "`rows=` where no argument of the model has rows", pyro=None)
def _no_rows(trial: Trial) -> None:
    y, inner = trial.backend.array(Y), mean(trial.backend)
    with (
        pretended(trial, 2, rows="d") as sharding,
        trial.refused("Expected arguments of the model with rows to split over axis 'd'"),
    ):
        trial.run(trial.svgd(lambda: inner(y), sharding=sharding), 3)


@fault(
    GROUP,
    "`rows=` and a model without a plate that it subsamples",
    numpyro=None,
)
def _no_plate(trial: Trial) -> None:
    def model(y: Any) -> None:
        host, dist = trial.backend.host, trial.backend.dist
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    with (
        pretended(trial, 2, rows="d") as sharding,
        # The processes that it is said to have are not there to compare arguments with.
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sharding, "agree", lambda digests: None)
        patch.setattr(sharding, "of_first", lambda values: values)
        with trial.refused("Expected a model whose rows can be split over 'd', found no plate"):
            trial.run(trial.svgd(model, sharding=sharding), 3, trial.backend.array(Y))


@fault(GROUP, "a `Sharding` without a process group", numpyro=None)
def _no_group(trial: Trial) -> None:
    with mesh(trial) as grid:
        pass
    with trial.refused("Expected a process group, found none. Start the program by torchrun"):
        trial.public.Sharding(grid, particles="p")


@fault(GROUP, "`exchange='all-to-all'` and a kernel with an array", RUNS, pyro=REFUSED)
def _other_exchange(trial: Trial) -> None:
    with mesh(trial) as grid:
        sharding = trial.public.Sharding(grid, particles="p", exchange="all-to-all")
        kernel = trial.public.RBF(metric=trial.backend.array([1.0]))
        engine = trial.svgd(mean(trial.backend), kernel=kernel, sharding=sharding)
        y = trial.backend.array(Y)
        if not trial.is_pyro:
            trial.run(engine, 3, y)
            return
        with trial.refused("Expected a kernel whose coordinates can be divided among processes"):
            trial.run(engine, 3, y)


@fault(GROUP, "`exchange='all-to-all'` and a direction of one's own", numpyro=None)
def _own_direction(trial: Trial) -> None:
    from pyro_ext.stein import ParticleEngine

    class Mean(ParticleEngine):
        def _direction(self, plan: Any, state: Any, particles: Any, scores: Any) -> Any:
            return scores.mean(0).expand_as(scores), None

    with mesh(trial) as grid:
        sharding = trial.public.Sharding(grid, particles="p", exchange="all-to-all")
        engine = Mean(
            mean(trial.backend), optimizer(trial.backend, "adam", 0.05), 3, sharding=sharding
        )
        with trial.refused("Expected an engine whose direction can be found for some coordinates"):
            trial.run(engine, 3, trial.backend.array(Y))


@fault(GROUP, "an engine with a `Sharding` that is pickled", RUNS, pyro="refused")
def _pickled(trial: Trial) -> None:
    with mesh(trial) as grid:
        sharding = trial.public.Sharding(grid, particles="p")
        if not trial.is_pyro:
            assert repr(pickle.loads(pickle.dumps(sharding))) == repr(sharding)
            return
        with trial.refused("Expected an engine without a Sharding to be pickled"):
            pickle.dumps(sharding)
