"""Variances of gradients and times of steps, and the report."""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.records import Record
from benchmarks.study import Study, backends_of
from benchmarks.timing import alternate, ratio

Array = NDArray[np.float64]

#: Units of the layers, rows of data, and those of a minibatch of the training.
LAYERS, NUM_DATA, BATCH = (8, 50, 50, 1), 2000, 128
#: Rows whose gradient is drawn.
ROWS = (32, 128, 512)
#: The host's objective, and what is compared with it.
PLAIN, METHODS = "plain", ("flipout", "local_reparameterization")
#: Standard deviation of the responses, which the network knows, and the rate of the training.
NOISE, RATE = 0.1, 1e-2


class Network(Protocol):
    """A trained network of one backend."""

    def gradients(self, method: str, rows: int, draws: int) -> Mapping[str, Array]:
        """Gradients (draws, entries) at the first rows, of "means" and "scales" of the weights."""

    def step(self, method: str, rows: int) -> Callable[[], object]:
        """A training step at the first rows."""


def data(seed: int) -> tuple[Array, Array]:
    """Features (N, 8) and responses (N,), smooth functions of them with noise."""
    generator = np.random.default_rng([6, seed])
    x = generator.normal(size=(NUM_DATA, LAYERS[0]))
    waves = np.sin(x @ generator.normal(size=(LAYERS[0], 3)))
    return x, waves.sum(1) + NOISE * generator.normal(size=NUM_DATA)


def variance_ratio(plain: Array, other: Array) -> float:
    """Variance of gradients (draws, entries), summed over their entries, against another's."""
    return float(plain.var(0).sum() / other.var(0).sum())


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and write what it found; the exit status."""
    study = Study("row-noise", arguments.out)
    for backend in backends_of(arguments.backend):
        module = importlib.import_module(f"benchmarks.row_noise.{backend}_network")
        for seed in range(arguments.seeds):
            network: Network = module.trained(*data(seed), arguments.steps, seed)
            for rows in ROWS:
                settings = {"rows": rows, "steps": arguments.steps, "draws": arguments.draws}
                work = partial(compared, network, rows, arguments.draws)
                study.run("variance", backend, "8-50-50-1", seed, settings, work)
    return study.report(study.overview(by=("rows",)))


def compared(network: Network, rows: int, draws: int) -> dict[str, float]:
    """How often each method's variances and times go into the plain ones, and the reverse."""
    found: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = network.gradients(PLAIN, rows, draws)
        for method in METHODS:
            other = network.gradients(method, rows, draws)
            for name in plain:
                found[f"{method}: {name}"] = variance_ratio(plain[name], other[name])
        cases = {each: network.step(each, rows) for each in (PLAIN, *METHODS)}
        times = alternate(cases, seconds=0.1)
    return found | {f"{each}: time": ratio(times, each, PLAIN) for each in METHODS}


#: Columns of the table on the page.
ON_PAGE = {
    "backend": "package",
    "rows": "rows",
    "flipout: means": "flipout: means",
    "flipout: scales": "scales",
    "local_reparameterization: means": "local: means",
    "local_reparameterization: scales": "scales",
}


def page_table(runs: Sequence[Record]) -> str:
    """The table on the page: how many times each method divides the variance."""
    rows = [row | {"backend": records.LABELS[row["backend"]]} for row in table(runs)]
    return records.markdown_table(rows, ON_PAGE, digits=2)


def table(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """Means over seeds, a row for each backend and number of rows."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for run in (run for run in runs if not run.failed):
        groups.setdefault((run.backend, run.settings["rows"]), []).append(run)
    return [
        {"backend": backend, "rows": rows}
        | {name: float(np.mean([run.figures[name] for run in own])) for name in own[0].figures}
        for (backend, rows), own in groups.items()
    ]
