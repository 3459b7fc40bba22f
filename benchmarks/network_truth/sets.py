"""Networks on UCI sets: `fit` beside MILE's public recipe, deep ensembles and ensembles of NUTS.

Two hidden layers of tanh units, a learnt noise, `priors.ScaledNormal()`: one program for all
methods. A tenth of a published split's training rows is held out: `fit` says by it whether it is
calibrated, ensembles end by it, and nothing else is fitted to it. The test rows are for the figures
alone. Log predictive densities are of the mixture over draws, noise included, in original units.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np

from benchmarks import datasets, records
from benchmarks.arguments import add_resume, count
from benchmarks.bnn.protocol import Rows, split_rows
from benchmarks.datasets import Split
from benchmarks.images.training import mean_and_spread, paired
from benchmarks.network_truth.ensembles import MEMBERS, ensemble
from benchmarks.network_truth.methods import flat_and_thinned, what_it_says
from benchmarks.network_truth.networks import Bound, Network, bound
from benchmarks.network_truth.outputs import Floats, predicted
from benchmarks.networks.linearized import SETS
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, forget_programs, pyplot
from benchmarks.trust.methods import Fitted, Size, run_fit
from benchmarks.trust.report import grouped

#: Share of the training rows that is held out, outputs that R-hat is of, and share of a recipe's
#: steps that a small run takes.
HELD_OUT, OUTPUTS, SMALL = 0.1, 60, 0.01
#: What is compared, and the rival packages' own.
METHODS = ("fit", "DeepEnsemble", "MILE", "NUTS ensemble")
NUMPYRO_ALONE = ("MILE", "NUTS ensemble")
#: Differences that are larger than so many standard errors are called ahead or behind.
ERRORS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks network-sets`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=SETS, metavar="NAME", help=", ".join(SETS)
    )
    parser.add_argument(
        "--units", nargs="+", type=count, default=(16, 64), help="of both hidden layers (16 and 64)"
    )
    parser.add_argument("--splits", type=count, default=3, help="of each set, the first (3)")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS[:3], metavar="METHOD",
        help=f"of {', '.join(METHODS)} (all but the last, which takes the longest)",
    )  # fmt: skip
    parser.add_argument("--backend", choices=("numpyro", "pyro", "both"), default="both")
    parser.add_argument("--small", action="store_true", help="few steps, to see that all runs")
    add_resume(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the comparison and write `network-sets.md` and `.png`; the exit status."""
    import torch

    torch.set_num_threads(1)
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("network-sets", arguments.out, **resumed)
    size = Size(SMALL if arguments.small else 1.0)
    for name in arguments.sets:
        data = datasets.external(name)
        for units in arguments.units:
            for split in range(arguments.splits):
                rows = split_rows(data, split, HELD_OUT)
                for backend in backends_of(arguments.backend):
                    task = Task(name, units, split, backend, rows, size)
                    for method in arguments.methods:
                        if backend == "numpyro" or method not in NUMPYRO_ALONE:
                            task.run(study, method)
    return study.report(text_of(study.runs), plot)


class Task:
    """A network on a split of a set in one package, and the methods that fit it."""

    def __init__(
        self, name: str, units: int, split: int, backend: str, rows: Rows, size: Size
    ) -> None:
        self.name, self.units, self.split, self.backend = name, units, split, backend
        self.rows, self.size = rows, size
        self._members: tuple[Fitted, float] | None = None

    def run(self, study: Study, method: str) -> None:
        """A method's record."""
        settings = {"units": self.units, "share": self.size.share}
        work = partial(self._figures, method)
        study.run(method, self.backend, self.name, self.split, settings, work)

    def _network(self, part: str) -> Network:
        rows = self.rows
        split = Split(rows.x, rows.y, *rows.parts[part])
        widths = (rows.x.shape[1], self.units, self.units, 1)
        return Network(self.name, lambda: split, widths, "noise")

    def _figures(self, method: str) -> dict[str, Any]:
        test = bound(self._network("test"), self.backend)
        with warnings.catch_warnings():
            # Of hosts about their own internals; what engines doubt stands in their judgement.
            warnings.simplefilter("ignore")
            fitted, seconds = self._fitted(method, test)
            draws, shape = flat_and_thinned(fitted)
            found = predicted(self.backend, test.program.model, draws, test.held_out)
            places = np.linspace(0, found.values.shape[1] - 1, OUTPUTS).round().astype(int)
            values = found.values[:, np.unique(places)]
            by_itself = fitted if method != "fit" else dataclasses.replace(fitted, chains=False)
            return {
                "dimension": self._network("test").dimension,
                "rows": len(self.rows.x),
                "log density": found.log_density - float(np.log(self.rows.scale)),
                "RMSE": float(found.metrics["rmse"]) * self.rows.scale,
                "calibration error": float(found.metrics["calibration_error"]),
                "median R-hat": median_r_hat(values, shape),
                "evaluations": fitted.evaluations,
                "processor seconds": seconds,
                **what_it_says(by_itself, values, shape),
            }

    def _fitted(self, method: str, test: Bound) -> tuple[Fitted, float]:
        """A method's draws, and its processor seconds, those of the members that it starts from
        included."""
        seed, program = self.split, test.program
        if method == "fit":
            held_out = bound(self._network("validation"), self.backend).held_out
            found, seconds = timed(partial(run_fit, self.backend, program, seed, held_out=held_out))
            return by_chain(found), seconds
        if self._members is None:
            network = self._network("validation")
            make = partial(ensemble, network, self.backend, self.rows, seed, self.size)
            self._members = timed(make)
        members, before = self._members
        if method == "DeepEnsemble":
            return members, before
        module = importlib.import_module("benchmarks.network_truth.numpyro_ensembles")
        chains = module.mile if method == "MILE" else module.nuts
        found, seconds = timed(partial(chains, program, members, seed, self.size))
        return found, before + seconds


def timed(work: Callable[[], Fitted]) -> tuple[Fitted, float]:
    """What comes out, and the processor's seconds, compiling included."""
    forget_programs()
    started = time.process_time()
    found = work()
    return found, time.process_time() - started


def by_chain(fitted: Fitted) -> Fitted:
    """Draws of `fit`, which come chain by chain, as (chains, draws, ...)."""
    draws = {
        name: each.reshape(MEMBERS, -1, *each.shape[1:]) for name, each in fitted.draws.items()
    }
    return dataclasses.replace(fitted, draws=draws, chains=True)


def median_r_hat(values: Floats, shape: tuple[int, ...]) -> float | None:
    """Rank-normalised split R-hat of outputs (S, M), the median; None where there are no chains."""
    if len(shape) == 1:
        return None
    return float(np.median([float(az.rhat(column.reshape(shape))) for column in values.T]))


# -- what is written ------------------------------------------------------------------------------


def plus_minus(values: Sequence[float], digits: int, sign: str = "") -> str:
    """The mean over splits and its standard error, which one split does not tell."""
    mean, spread = mean_and_spread(values)
    shown = f"{mean:{sign}.{digits}f}"
    return shown if np.isnan(spread) else f"{shown} ± {spread / np.sqrt(len(values)):.{digits}f}"


def standing(less: Sequence[float]) -> str:
    """Where `fit` stands, from the log densities of a rival less its own on the same splits."""
    mean, spread = mean_and_spread(less)
    error = ERRORS * spread / np.sqrt(len(less))
    if np.isnan(error):
        return "one split"
    return "level" if abs(mean) <= error else "behind" if mean > 0.0 else "ahead"


def rows_of(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each set, network, package and method: means over the splits."""

    def key(run: Record) -> tuple[Any, ...]:
        place = SETS.index(run.model), run.settings["units"], run.backend
        return *place, METHODS.index(run.method)

    groups = grouped(sorted(runs, key=key), key)
    table = []
    for where, every in groups.items():
        own = [run for run in every if not run.failed]
        row: dict[str, Any] = {
            "set": every[0].model.replace("_", " "),
            "units": every[0].settings["units"],
            "package": records.LABELS[every[0].backend],
            "method": every[0].method,
            "splits": len(own),
        }
        table.append(row)
        if not own:
            row["trusted"] = "failed"
            continue
        for name, digits in (("log density", 3), ("RMSE", 3), ("calibration error", 3)):
            row[name] = plus_minus([run.figures[name] for run in own], digits)
        less = paired(own, groups.get((*where[:3], 0), ()), "log density")
        if every[0].method != "fit" and len(less):
            row["less that of fit"] = plus_minus(less.tolist(), 3, "+")
            row["fit is"] = standing(less.tolist())
        r_hats = [run.figures["median R-hat"] for run in own]
        row["R-hat"] = None if r_hats[0] is None else f"{np.median(r_hats):.3f}"
        row["evaluations"] = round(np.mean([run.figures["evaluations"] for run in own]))
        row["processor s"] = round(np.mean([run.figures["processor seconds"] for run in own]))
        row["trusted"] = f"{sum(run.figures['trusted'] for run in own)} of {len(own)}"
        if len(own) < len(every):
            row["trusted"] += f", {len(every) - len(own)} failed"
    return table


#: Columns of the table.
COLUMNS = (
    *("set", "units", "package", "method", "splits", "log density", "less that of fit", "fit is"),
    *("RMSE", "calibration error", "R-hat", "evaluations", "processor s", "trusted"),
)


def page_table(runs: Sequence[Record]) -> str:
    """The table on the page on networks."""
    return records.markdown_table(rows_of(runs), COLUMNS)


def text_of(runs: Sequence[Record]) -> str:
    """The report."""
    return (
        "# Networks on UCI sets\n\nMade by `python -m benchmarks network-sets`. Mean log "
        "predictive density of the test rows in original units, means over splits and standard "
        "errors; *less that of fit* is of the same splits, and `fit` is ahead or behind where it "
        f"is beyond {ERRORS:g} standard errors. R-hat is of the outputs on test rows, the median. "
        "Evaluations are of the score of all rows, seconds the processor's, compiling included.\n\n"
        + page_table(runs)
    )


def plot(runs: Sequence[Record], path: Path) -> None:
    """Log predictive density over processor seconds, a panel for each set."""
    plt = pyplot()
    own = [run for run in runs if not run.failed]
    names = [name for name in SETS if any(run.model == name for run in own)]
    size = 3.2 * len(names) + 1.8, 3.4
    figure, axes = plt.subplots(
        1, len(names), figsize=size, sharex=True, squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], names, strict=True):
        for run in (run for run in own if run.model == name):
            number, filled = METHODS.index(run.method), run.backend == "numpyro"
            label = f"{run.method}, {records.LABELS[run.backend]}, {run.settings['units']} units"
            axis.plot(
                run.figures["processor seconds"],
                run.figures["log density"],
                "os^D"[number],
                color=f"C{number}",
                fillstyle="full" if filled else "none",
                markersize=6.0 if run.settings["units"] < 64 else 9.0,
                label=label,
            )
        axis.set(
            xscale="log",
            xlim=(10.0, None),
            title=name.replace("_", " "),
            xlabel="processor seconds",
        )
    seconds = [run.figures["processor seconds"] for run in own]
    # From 10 on, so that more than one tick of the logarithmic axis is named.
    axes[0, 0].set_xlim(0.8 * min(12.0, *seconds), 1.3 * max(seconds))
    axes[0, 0].set_ylabel("log predictive density of test rows")
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)
