"""Score-based and ELBO-based inference on targets whose answer is known.

Reproduces the synthetic experiments of M. Kim, "Large-scale Score-based Variational Posterior
Inference for Bayesian Deep Neural Networks" (Fig. 1 and 2, Tables 7 and 8, the ablations of
section 5.6 and the noise of equation 19) with several seeds, for ``ProximalScoreVI`` and for
ADVI, GSM, BaM, Fisher and Score. ``synthetic.md`` with all tables, ``synthetic.jsonl`` with a
record of every run and a plot of each experiment are written to the output folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import records
from benchmarks.arguments import count
from benchmarks.records import Record

if TYPE_CHECKING:
    from benchmarks.synthetic.experiments import Case, Experiment

BACKENDS = {"numpyro": ("numpyro",), "pyro": ("pyro",), "both": ("numpyro", "pyro")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks synthetic`."""
    from benchmarks.synthetic.experiments import all_experiments

    names = list(all_experiments())
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--seeds", type=count, default=5, help="seeds of every run")
    parser.add_argument("--backend", choices=BACKENDS, default="numpyro", help="Pyro is slower")
    parser.add_argument(
        "--experiment",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"of {', '.join(names)}; default all",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the budget, and at most two seeds"
    )
    parser.add_argument(
        "--cases", nargs="+", metavar="NAME", help="of an experiment, as named in the records"
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help='such as "Ours, regression" or ADVI'
    )
    parser.add_argument("--float32", action="store_true", help="single precision")
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="run nothing; tables and plots from the records in the output folder",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the experiments and write tables and plots."""
    # Imported here so that the command line's help does not wait for what they import.
    from benchmarks.synthetic import plots, report, runs
    from benchmarks.synthetic.experiments import RATES, all_experiments

    started = time.perf_counter()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    path = out / "synthetic.jsonl"
    seeds = range(min(arguments.seeds, 2) if arguments.quick else arguments.seeds)
    experiments = all_experiments(arguments.quick)
    old = latest(records.read(path)) if arguments.redraw else []
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    sections = [report.INTRODUCTION.format(seeds=len(seeds), rates=rates)]
    for name in BACKENDS[arguments.backend]:
        if not arguments.redraw:
            backend = importlib.import_module(f"benchmarks.synthetic.{name}_fits")
            backend.configure(float64=not arguments.float32)
        for chosen in arguments.experiment:
            experiment = experiments[chosen]
            found = [
                record
                for record in old
                if (record.settings["experiment"], record.backend) == (chosen, records.LABELS[name])
            ]
            begun = time.perf_counter()
            if not arguments.redraw:
                for case in selected(experiment, arguments.cases, arguments.methods):
                    print(f"{records.LABELS[name]}, {chosen}: {case.title}", flush=True)
                    found += runs.run_case(experiment, case, backend, seeds, path)
            if not found:
                continue
            section = report.section(experiment, records.LABELS[name], found)
            print(f"\n{section}\n{time.perf_counter() - begun:.0f} seconds\n", flush=True)
            sections.append(section)
            plots.draw(experiment, found, out / f"synthetic_{chosen}_{name}.png")
    seconds = time.perf_counter() - started
    if not arguments.redraw:
        sections.append(f"All runs took {seconds / 60:.1f} minutes.\n")
    records.write_text(out / "synthetic.md", "\n".join(["# Synthetic targets\n", *sections]))
    return 0


def selected(
    experiment: Experiment, cases: Sequence[str] | None, methods: Sequence[str] | None
) -> Iterator[Case]:
    """Cases of an experiment with these names, with the methods of these names; None means all."""
    for case in experiment.cases:
        kept = tuple(each for each in case.methods if methods is None or each.name in methods)
        if kept and (cases is None or case.name in cases):
            yield dataclasses.replace(case, methods=kept)


def latest(found: Sequence[Record]) -> list[Record]:
    """The records without those that a later run of the same kind replaces."""
    kept: dict[tuple[object, ...], Record] = {}
    for record in found:
        settings = record.settings
        key = (settings["experiment"], record.model, record.method, record.backend, record.seed)
        kept[*key, settings["rate"], settings["budget"]] = record
    return list(kept.values())
