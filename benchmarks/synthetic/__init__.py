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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks.arguments import add_common

if TYPE_CHECKING:
    from benchmarks.synthetic.experiments import Case, Experiment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks synthetic`."""
    from benchmarks.synthetic.experiments import all_experiments

    names = list(all_experiments())
    add_common(parser, backend="numpyro", seeds=5, of_seeds="seeds of every run")
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
    from benchmarks.study import Study, backends_of
    from benchmarks.synthetic import plots, runs
    from benchmarks.synthetic.experiments import ELBO_GAP, FORWARD, all_experiments

    seeds = range(min(arguments.seeds, 2) if arguments.quick else arguments.seeds)
    experiments = all_experiments(arguments.quick)
    chosen = [experiments[name] for name in arguments.experiment]
    if arguments.redraw:
        study = Study.recorded("synthetic", arguments.out)
    else:
        study = Study("synthetic", arguments.out)
        for name in backends_of(arguments.backend):
            backend = importlib.import_module(f"benchmarks.synthetic.{name}_fits")
            backend.configure(float64=not arguments.float32)
            for experiment in chosen:
                for case in selected(experiment, arguments.cases, arguments.methods):
                    runs.run_case(study, experiment, case, backend, seeds)
    for label in dict.fromkeys(run.backend for run in study.runs):
        for experiment in chosen:
            found = [run for run in study.runs if run.backend == label]
            found = [run for run in found if run.settings["experiment"] == experiment.name]
            if found:
                path = arguments.out / f"synthetic_{experiment.name}_{label.lower()}.png"
                plots.trajectories(experiment, found, path)
    study.report(study.overview(FORWARD, ELBO_GAP, by=("experiment", "rate")))
    return 0


def selected(
    experiment: Experiment, cases: Sequence[str] | None, methods: Sequence[str] | None
) -> Iterator[Case]:
    """Cases of an experiment with these names, with the methods of these names; None means all."""
    for case in experiment.cases:
        kept = tuple(each for each in case.methods if methods is None or each.name in methods)
        if kept and (cases is None or case.name in cases):
            yield dataclasses.replace(case, methods=kept)
