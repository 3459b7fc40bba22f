"""Timing in turns, and the report."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.curvature import network
from benchmarks.study import Study, backends_of, modules_of
from benchmarks.timing import alternate, ratio

#: What is compared with which library.
PEERS = {"Gauss-Newton products": "curvlinops", "posterior precision": "laplace-torch"}


def run(arguments: argparse.Namespace) -> int:
    """Run the comparisons and write what they found; the exit status."""
    study = Study("curvature", arguments.out)
    for backend in backends_of(arguments.backend):
        steps(study, backend, arguments.rounds)
        first_run(study, backend)
        if backend == "pyro":
            peers(study, arguments.rounds)
    cases = ("SVGD", *network.STEPS, "pyro_ext", *PEERS.values())
    ratios = (f"{case}: ratio" for case in cases)
    return study.report(study.overview(*ratios, "largest difference", "seconds", "loss"))


def quietly(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Figures of work, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def steps(study: Study, backend: str, rounds: int) -> None:
    """The step of each form of SVN against that of SVGD."""

    def work() -> dict[str, Any]:
        (module,) = modules_of(backend, "curvature.{}_steps")
        times = alternate(module.cases(), rounds=rounds)
        return {
            case: {"milliseconds": 1e3 * seconds, "ratio": ratio(times, case, "SVGD")}
            for case, seconds in times.items()
        }

    settings, name = {"rounds": rounds}, f"step, {backend}"
    study.run(name, backend, "", None, settings, partial(quietly, work), go_on_after=())


def first_run(study: Study, backend: str) -> None:
    """Seconds of a first run over all rows of a small network, compiling included."""

    def work() -> dict[str, Any]:
        (module,) = modules_of(backend, "curvature.{}_steps", None)
        start = time.perf_counter()
        loss = module.small_run()
        return {"loss": loss, "seconds": time.perf_counter() - start}

    settings, name = {"steps": network.SMALL_STEPS}, f"first run, {backend}"
    study.run(name, backend, "", None, settings, partial(quietly, work), go_on_after=())


def page_table(runs: list[records.Record]) -> str:
    """The table on the page: the step of each form in both packages."""
    last = {run.method: run.figures for run in runs}
    each = {backend: last[f"step, {backend}"] for backend in ("numpyro", "pyro")}
    rows = []
    for case in each["numpyro"]:
        row: dict[str, Any] = {"step": f"`{network.CODE.get(case, case)}`"}
        for backend, name in (("numpyro", "NumPyro"), ("pyro", "Pyro")):
            found = each[backend][case]
            row[f"{name}, ms"] = float(np.median(found["milliseconds"]))
            row[f"{name}, times `SVGD`"] = found["ratio"]
        rows.append(row)
    return records.markdown_table(rows)


def peers(study: Study, rounds: int) -> None:
    """The same matrix by other libraries; a failed record says so where one is not installed."""
    import torch

    from benchmarks.curvature.peers import Network, matrices, products

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    each = Network()
    for build, (name, peer) in zip((products, matrices), PEERS.items(), strict=True):

        def work(build: Any = build) -> dict[str, Any]:
            cases, difference = build(each)
            times = alternate(cases, rounds=rounds)
            return {
                **difference,
                **{
                    case: {"milliseconds": 1e3 * seconds, "ratio": ratio(times, case, "pyro_ext")}
                    for case, seconds in times.items()
                },
            }

        settings, done = {"rounds": rounds}, partial(quietly, work)
        study.run(name, peer, "", None, settings, done, go_on_after=(ImportError,))
    torch.set_default_dtype(torch.float32)
