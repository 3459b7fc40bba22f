"""What processes of ``torch.distributed`` do in tests: functions of a rank, a folder and options.

They return tensors in containers, or raise.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from torch.distributed.device_mesh import init_device_mesh

import pyro_ext as px
from ppl_ext.start import search
from tests.sharding.rounding import AMPLIFYING, CHANGES, in_last_bit

#: By name, the sizes of a mesh's dimensions, and what they split.
LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "particles": ((2,), {"particles": "p"}),
    "rows": ((2,), {"rows": "d"}),
    "all to all": ((2,), {"particles": "p", "exchange": "all-to-all"}),
    "particles, 4": ((4,), {"particles": "p"}),
    "rows, 4": ((4,), {"rows": "d"}),
    "both": ((2, 2), {"particles": "p", "rows": "d"}),
    "both, all to all": ((2, 2), {"particles": "p", "rows": "d", "exchange": "all-to-all"}),
}
ROWS = 41


def sharding_of(layout: str, **options: Any) -> px.Sharding:
    shape, named = LAYOUTS[layout]
    names = tuple(name for option, name in named.items() if option != "exchange")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return px.Sharding(mesh, **named, **options)


def regression(x: torch.Tensor, y: torch.Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
    with pyro.plate("rows", len(x), subsample_size=8) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ weights, scale), obs=y[rows])


def arrays(dtype: torch.dtype = torch.float64, dim: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, dim))
    y = x @ np.linspace(1.0, -1.0, dim) + 0.3 * rng.normal(size=ROWS)
    return torch.as_tensor(x, dtype=dtype), torch.as_tensor(y, dtype=dtype)


def both_ways(
    rank: int, layout: str, figures: Callable[[px.Sharding | None], dict[str, torch.Tensor]]
) -> dict[str, Any]:
    """Figures on a layout, and those of one process, which the first one alone computes."""
    sharded = figures(sharding_of(layout))
    alone = figures(None) if rank == 0 else {}
    # The others wait here, and not in the first exchange of their next job, which has a timeout.
    torch.distributed.barrier()
    return {"sharded": sharded, "alone": alone}


def adam(**clip: float) -> Any:
    return pyro.optim.Adam({"lr": 0.05}, clip or None)


def full_guide() -> Any:
    return AutoMultivariateNormal(regression)


#: Engines by name, of the options that all take.
ENGINES: dict[str, Callable[..., Any]] = {
    "SVGD": lambda **o: px.SVGD(regression, adam(), num_particles=4, **o),
    "SVGD, all rows": lambda **o: px.SVGD(
        regression, adam(), num_particles=4, estimator=px.Full(), data_chunk=5, **o
    ),
    "SVGD, noise": lambda **o: px.SVGD(
        regression, adam(), num_particles=4, estimator=px.Noisy(px.Minibatch(), level=0.3), **o
    ),
    "SVGD, SAGA": lambda **o: px.SVGD(
        regression, adam(), num_particles=4, estimator=px.SAGA(), **o
    ),
    # An optimizer that looks at all particles.
    "SVGD, clipped": lambda **o: px.SVGD(regression, adam(clip_norm=1.0), num_particles=4, **o),
    "SVGDVR": lambda **o: px.SVGDVR(
        regression, adam(), num_particles=4, anchor_every=3, reset_optimizer=True, **o
    ),
    "WGD": lambda **o: px.WGD(regression, adam(), num_particles=4, **o),
    "DeepEnsemble": lambda **o: px.DeepEnsemble(regression, adam(), num_particles=4, **o),
    "SVN": lambda **o: px.SVN(regression, num_particles=4, estimator=px.Full(), **o),
    "SVN, minibatches": lambda **o: px.SVN(regression, num_particles=4, **o),
    "ProximalScoreVI": lambda **o: px.ProximalScoreVI(
        regression, full_guide(), solver=px.Regression(num_samples=4), **o
    ),
    # Draws that do not split evenly.
    "ProximalScoreVI, gradient": lambda **o: px.ProximalScoreVI(
        regression,
        AutoDiagonalNormal(regression),
        solver=px.GradientSteps(num_samples=5),
        estimator=px.SVRG(4),
        **o,
    ),
    "GSM": lambda **o: px.GSM(regression, full_guide(), num_samples=4, estimator=px.Full(), **o),
    "BaM": lambda **o: px.BaM(regression, full_guide(), num_samples=4, estimator=px.Full(), **o),
    "FisherVI": lambda **o: px.FisherVI(
        regression, full_guide(), adam(), num_samples=4, estimator=px.Full(), **o
    ),
    "LaplaceGGN": lambda **o: px.LaplaceGGN(regression, adam(), estimator=px.Full(), **o),
}


def fitted(
    engine: str,
    sharding: px.Sharding | None,
    dtype: torch.dtype,
    steps: int,
    change: int | None = None,
) -> dict[str, torch.Tensor]:
    """Losses and draws of a fresh engine after some steps, on data changed in their last bit."""
    made, data = ENGINES[engine](seed=3, dtype=dtype, sharding=sharding), arrays(dtype)
    if change is not None:
        x, y = (torch.as_tensor(in_last_bit(each.numpy(), change)) for each in data)
        data = x, y
    result = made.run(steps, *data, start="host", progress_bar=False)
    number = None if hasattr(made, "num_particles") and engine != "LaplaceGGN" else 4
    draws = made.get_samples(number)
    figures = {name: torch.as_tensor(each) for name, each in result.info.items()}
    evaluations = torch.as_tensor(made.gradient_evaluations)
    return {
        **draws,
        **figures,
        "loss": torch.as_tensor(result.losses),
        "evaluations": evaluations,
    }


def equality(
    rank: int, folder: Path, engine: str, layout: str, precision: str, steps: int = 6
) -> dict[str, Any]:
    """The fit on a layout, in one process, and there on data that are changed."""
    dtype = getattr(torch, precision)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = both_ways(rank, layout, lambda sharding: fitted(engine, sharding, dtype, steps))
        if precision == "float32" and engine.startswith(AMPLIFYING):
            changes = CHANGES if rank == 0 else ()
            found["changed"] = [fitted(engine, None, dtype, steps, change) for change in changes]
            torch.distributed.barrier()
        return found
    finally:
        torch.set_default_dtype(default)


class Batches:
    """Batches of the rows in an order that depends on the epoch, the last one of a single row."""

    epoch = 0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return -(-ROWS // 10)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        x, y = arrays()
        order = np.random.default_rng((self.seed, self.epoch)).permutation(ROWS)
        for start in range(0, ROWS, 10):
            rows = order[start : start + 10]
            yield x[rows], y[rows]


def by_argument(x: torch.Tensor, y: torch.Tensor) -> None:
    """The regression, whose batches are its arguments."""
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
    with pyro.plate("rows", ROWS, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def unscaled(x: torch.Tensor, y: torch.Tensor) -> None:
    """Whose plate takes its rows for all there are."""
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


#: Engines that take a loader.
LOADED: dict[str, Callable[..., Any]] = {
    "SVGD": lambda **o: px.SVGD(by_argument, adam(), num_particles=4, **o),
    "SVGDVR": lambda **o: px.SVGDVR(
        by_argument, adam(), num_particles=4, anchor_every=3, full_data=Batches(1), **o
    ),
    "ProximalScoreVI": lambda **o: px.ProximalScoreVI(
        by_argument,
        AutoMultivariateNormal(by_argument),
        solver=px.Regression(num_samples=4),
        **o,
    ),
}


def loaded(rank: int, folder: Path, engine: str, layout: str) -> dict[str, Any]:
    """A fit by batches of a loader and what comes after it, on a layout and in one process."""

    def figures(sharding: px.Sharding | None) -> dict[str, torch.Tensor]:
        made = LOADED[engine](seed=3, dtype=torch.float64, sharding=sharding)
        half = made.run(4, batches=Batches(), start="host", progress_bar=False)
        path = folder / f"{engine} {layout} {'together' if sharding else rank}"
        made.save(path)
        again = LOADED[engine](seed=3, dtype=torch.float64, sharding=sharding)
        again.load(path)
        result = again.run(4, batches=Batches(), progress_bar=False)
        found = {"loss": torch.as_tensor(np.concatenate([half.losses, result.losses]))}
        if engine == "ProximalScoreVI":
            found["elbo"] = torch.as_tensor(px.elbo(again, batches=Batches()).value)
        number = 4 if engine == "ProximalScoreVI" else None
        return {**found, **again.get_samples(number)}

    torch.set_default_dtype(torch.float64)
    try:
        return both_ways(rank, layout, figures)
    finally:
        torch.set_default_dtype(torch.float32)


def apart(rank: int, folder: Path, what: str) -> None:
    """A run whose processes read other batches, or whose parts of a batch are not scaled up."""
    model, seed = (by_argument, rank) if what == "rows" else (unscaled, 0)
    batches = Batches(seed) if what == "rows" else [arrays()]
    options: dict[str, Any] = {"seed": 3, "dtype": torch.float64, "sharding": sharding_of("rows")}
    engine = px.DeepEnsemble(model, adam(), num_particles=2, **options)
    engine.run(2, batches=batches, progress_bar=False)


def resumption(rank: int, folder: Path, engine: str, layout: str) -> dict[str, torch.Tensor]:
    """Draws after eight steps, in one run and in two with a checkpoint between them.

    The second half is run on the same layout and in one process.
    """
    path = folder / f"{engine} {layout}"
    dtype = torch.float64

    def made(sharding: px.Sharding | None) -> Any:
        return ENGINES[engine](seed=3, dtype=dtype, sharding=sharding)

    def run(fit: Any, steps: int, **options: Any) -> None:
        fit.run(steps, *arrays(dtype), progress_bar=False, **options)

    def draws(fit: Any) -> torch.Tensor:
        number = None if hasattr(fit, "num_particles") and engine != "LaplaceGGN" else 4
        return torch.cat([each.flatten() for each in fit.get_samples(number).values()])

    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        sharding = sharding_of(layout)
        through = made(sharding)
        run(through, 4, start="host", checkpoint=path)
        saved = path.stat().st_mtime_ns
        run(through, 4)
        found = {"through": draws(through)}
        for name, each in (("again", sharding), ("alone", None)):
            resumed = made(each)
            resumed.load(path)
            run(resumed, 4)
            found[name] = draws(resumed)
        # What one process alone saves goes on in many.
        alone = made(None)
        run(alone, 4, start="host")
        if rank == 0:
            alone.save(folder / f"alone {engine}")
        sharding.any(False)
        taken = made(sharding)
        taken.load(folder / f"alone {engine}")
        run(taken, 4)
        found["taken"] = draws(taken)
        found["saved once"] = torch.tensor(saved == path.stat().st_mtime_ns)
        return found
    finally:
        torch.set_default_dtype(default)


def disagreement(rank: int, folder: Path, what: str) -> None:
    """A run, or a fit, in which the second process has something else."""
    sharding = sharding_of("particles")
    x, y = arrays()
    other = rank == 1
    options: dict[str, Any] = {"seed": 3, "sharding": sharding}
    model, steps = regression, 2
    if what == "seed" and other:
        options["seed"] = 4
    if what == "arguments" and other:
        y = y + 1.0
    if what == "options of the run" and other:
        steps = 3
    if what == "settings" and other:
        options["likelihood_temperature"] = 2.0
    if what == "program":
        scale = 2.0 if other else 1.0

        def model(x: torch.Tensor, y: torch.Tensor) -> None:
            weights = pyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
            pyro.sample("y", dist.Normal(x @ weights, 1.0).to_event(1), obs=y)

    if what == "options of the fit":
        judge = "sites" if other else None
        px.fit(model, x, y, judge=judge, sharding=sharding, progress_bar=False)
        return
    engine = px.DeepEnsemble(model, adam(), num_particles=2, dtype=torch.float64, **options)
    engine.run(steps, x, y, progress_bar=False)


def seeds(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    """Engines without a seed start alike in all processes, also where torch's own differ."""
    engine = px.DeepEnsemble(
        regression, adam(), num_particles=2, dtype=torch.float64, sharding=sharding_of("particles")
    )
    engine.run(2, *arrays(), progress_bar=False)
    return engine.get_samples()


#: Kernels whose coordinates can be divided among processes.
KERNELS: dict[str, Any] = {
    "default": None,
    "hierarchical": px.kernels.hierarchical_kernel(),
    "RBF": px.RBF(metric="variance"),
    "IMQ": px.IMQ(bandwidth="pyro"),
    "Linear": px.RBF(bandwidth="dimension") + 0.5 * px.Linear(metric=None),
}


def kernels(rank: int, folder: Path) -> dict[str, Any]:
    """Particles by kernel, all to all and in one process; five coordinates, so one is filled up.

    The default is another one for sixty coordinates, and not for a process's thirty, and for three,
    and not for five. In the end what is said of a kernel with an array.
    """

    def particles(kernel: Any, sharding: px.Sharding | None, dim: int = 4) -> torch.Tensor:
        options: dict[str, Any] = {"seed": 3, "dtype": torch.float64, "sharding": sharding}
        engine = px.SVGD(regression, adam(), kernel, num_particles=4, **options)
        engine.run(4, *arrays(dim=dim), start="host", progress_bar=False)
        return engine.particles

    divided = sharding_of("all to all")
    found: dict[str, Any] = {"sharded": {}, "alone": {}, "refused": ""}
    for where, sharding in (("sharded", divided), ("alone", None))[: 2 if rank == 0 else 1]:
        for name, kernel in KERNELS.items():
            found[where][name] = particles(kernel, sharding)
        found[where]["default, few"] = particles(None, sharding, dim=59)
        found[where]["default, many"] = particles(None, sharding, dim=2)
    torch.distributed.barrier()
    try:
        particles(px.RBF(metric=torch.ones(5)), divided)
    except px.ArgumentError as error:
        found["refused"] = str(error)
    return found


def traffic(rank: int, folder: Path, engine: str, layout: str, dim: int) -> dict[str, float]:
    """Numbers that a step's collectives move, over P D."""
    sharding = sharding_of(layout)
    made = ENGINES[engine](seed=3, dtype=torch.float64, sharding=sharding)
    data = arrays(dim=dim)
    made.setup(*data, start="host")
    made.step(*data)
    sharding.traffic.clear()
    made.step(*data)
    numbers = sharding.traffic.numbers
    size = 4 * made.target.dim
    return {"all": sum(numbers.values()) / size, **{n: v / size for n, v in numbers.items()}}


def lost(rank: int, folder: Path, how: str, timeout: float = 5.0) -> dict[str, float]:
    """Seconds until the first process hears that the second has gone or stalled, at step 3."""
    sharding = sharding_of("particles", timeout=timeout)
    engine = ENGINES["SVGD"](seed=3, dtype=torch.float64, sharding=sharding)

    def callback(step: int, *_: Any) -> None:
        if step == 3 and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), 9)
            time.sleep(2.0 * timeout)

    path = folder / how
    began = time.perf_counter()
    try:
        engine.run(
            6,
            *arrays(),
            start="host",
            callback=callback,
            callback_every=1,
            checkpoint=path,
            checkpoint_every=2,
            progress_bar=False,
        )
    except px.RankLostError as error:
        again = ENGINES["SVGD"](seed=3, dtype=torch.float64)
        again.load(path)
        return {
            "seconds": time.perf_counter() - began,
            "saved": again.num_steps_taken,
            "said": float("last checkpoint" in str(error)),
        }
    return {"seconds": math.inf}


def after_the_fit(rank: int, folder: Path, layout: str) -> dict[str, Any]:
    """Draws with what a model computes of them, on a layout and in one process."""
    x, y = arrays()
    engine = px.DeepEnsemble(regression, adam(), num_particles=5, seed=3, dtype=torch.float64)
    engine.run(2, x, y, start="host", progress_bar=False)
    draws = engine.get_samples()

    def figures(sharding: px.Sharding | None) -> dict[str, torch.Tensor]:
        tree = px.to_arviz(engine, x, y, sharding=sharding, data_chunk=16)
        names = {
            "posterior_predictive": "y",
            "log_likelihood": "y",
            "sample_stats": "log_p",
        }
        found = {group: np.array(tree[group][name]) for group, name in names.items()}
        predicted = px.predictive_distribution(regression, draws, x, y, sharding=sharding)
        found |= {f"predicted {name}": np.array(predicted[name]) for name in predicted.data_vars}
        return {name: torch.as_tensor(each) for name, each in found.items()}

    return both_ways(rank, layout, figures)


def chains(rank: int, folder: Path, layout: str) -> dict[str, Any]:
    """Draws of chains that are run as one, on a layout and in one process."""

    def draws(sharding: px.Sharding | None) -> dict[str, torch.Tensor]:
        # Processes of a sharding take the first one's random numbers; it starts alike here.
        torch.manual_seed(5 + (rank if sharding is not None else 0))
        kernel = px.SGLD(regression, 1e-4, dtype=torch.float64, sharding=sharding)
        mcmc = px.MCMC(kernel, 4, 2, num_chains=3, disable_progbar=True)
        mcmc.run(*arrays())
        return dict(mcmc.get_samples(group_by_chain=True))

    return both_ways(rank, layout, draws)


def whole_fit(rank: int, folder: Path, layout: str, loader: bool = False) -> dict[str, Any]:
    """Draws of ``fit``, on a layout and in one process."""
    search.MOST_ROWS = 20 if loader else 10_000

    def draws(sharding: px.Sharding | None) -> dict[str, torch.Tensor]:
        options: dict[str, Any] = {"progress_bar": False, "sharding": sharding}
        if loader:
            found = px.fit(by_argument, batches=Batches(), exact=False, **options)
        else:
            found = px.fit(regression, *arrays(), **options)
        return {**found.get_samples(), "level": torch.tensor(len(found.verdict.level))}

    torch.set_default_dtype(torch.float64)
    try:
        return both_ways(rank, layout, draws)
    finally:
        torch.set_default_dtype(torch.float32)
