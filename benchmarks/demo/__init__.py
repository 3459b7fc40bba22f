"""Fit three models with Pyro and NumPyro, compare with NUTS, and write a report.

Eight schools, a logistic regression on real data and a Bayesian neural network on real data are
fitted by this project's `fit`, SVGD and ProximalScoreVI and by the hosts' SVI on both backends.
NUTS of NumPyro is the reference of both. One table is printed, with the verdicts of `fit`, and
``report.md``, ``demo.jsonl``, plots and the fits as netCDF files are written to the output folder.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.arguments import count

COLUMNS = {
    "backend": "backend",
    "method": "method",
    "mean error": "mean error (sd)",
    "worst mean error": "worst (sd)",
    "sd ratio": "sd ratio",
    "smallest sd ratio": "smallest",
    "largest sd ratio": "largest",
    "Kolmogorov": "Kolmogorov",
    "right": "right",
    "verdict": "verdict",
    "test log likelihood": "test log lik.",
    "seconds": "seconds",
    "gradients": "gradients",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks demo`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--samples", type=count, default=2000, help="draws from each guide")
    parser.add_argument("--no-progress", action="store_true", help="no progress bars")


def main(arguments: argparse.Namespace) -> int:
    """Run the demonstration."""
    # Imported here so that the command line's help does not wait for both frameworks.
    import torch

    from benchmarks.demo import numpyro_fits, plots, pyro_fits
    from benchmarks.demo.fits import Fit, judge
    from benchmarks.demo.problems import all_problems

    # Models this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    started = time.perf_counter()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    problems = all_problems()
    everything: list[Fit] = []
    sections = []
    for problem in problems:
        print(f"\n{problem.title}")
        rows = []
        reference: Fit | None = None
        for backend in (numpyro_fits, pyro_fits):
            for fit in backend.fits(problem, not arguments.no_progress, arguments.samples):
                reference = reference or fit
                figures: dict[str, Any] = judge(problem, fit, reference)
                if fit.verdict is not None:
                    figures["verdict"] = fit.verdict.level
                everything.append(fit)
                rows.append({"backend": fit.backend, "method": fit.method, **figures})
                record = records.Record(
                    "demo",
                    fit.method,
                    fit.backend,
                    problem.name,
                    seed=0,
                    settings=dict(fit.settings),
                    figures=figures,
                    seconds=fit.seconds,
                )
                records.append(out / "demo.jsonl", record)
                if fit.inference_data is not None:
                    name = f"{problem.name}_{fit.method}_{fit.backend}.nc"
                    fit.inference_data().to_netcdf(str(out / name.lower()))
        table = records.markdown_table(rows, COLUMNS)
        print(table)
        own = [fit for fit in everything if fit.problem == problem.name]
        verdicts = [f"{fit.label}: {fit.verdict}" for fit in own if fit.verdict is not None]
        print("\n\n".join(verdicts))
        assert reference is not None
        plots.posterior_densities(problem, own, reference, out / f"{problem.name}_posterior.png")
        pictures = [f"{problem.name}_posterior.png"]
        if problem.name == "network":
            plots.predictive_bands(problem, own, out / "network_predictive.png")
            pictures.append("network_predictive.png")
        shown = "\n".join(f"![{problem.title}]({picture})\n" for picture in pictures)
        sections.append(
            f"## {problem.title}\n\n{table}\n"
            + "".join(f"```text\n{verdict}\n```\n\n" for verdict in verdicts)
            + f"Test log likelihood: mean {problem.about_test}.\n\n{shown}"
        )
    plots.loss_traces(problems, everything, out / "losses.png")
    seconds = time.perf_counter() - started
    report = (
        "# Demonstration\n\n"
        "Made by `make demo` (`python -m benchmarks demo`). NumPyro's NUTS is the reference: mean "
        "errors are in its standard deviations (average and worst over the compared quantities), "
        "sd ratios are to its standard deviations (median, smallest, largest), and the Kolmogorov "
        "distance is the worst marginal's. A fit is right where all means are within 0.1, standard "
        "deviations within 10 % and distances within 0.05, beyond sampling error. Compared are all "
        "parameters; for the network its noise and its outputs at the test rows, since weights are "
        "not identified. Seconds include compilation. Gradients are of the log density over all "
        "rows: a minibatch of B of N rows counts B/N.\n\n"
        + "\n".join(sections)
        + "\n## Loss traces\n\n"
        "SVI: minus the evidence lower bound. SVGD: minus the mean log density of the particles, "
        "which rises again while they spread. ProximalScoreVI: the squared distance between the "
        "guide's scores and the model's.\n\n![Loss traces](losses.png)\n\n"
        + f"The whole run took {seconds:.0f} s.\n"
    )
    records.write_text(out / "report.md", report)
    print(f"Wrote {out / 'report.md'}, plots and netCDF files in {seconds:.0f} s.")
    return 0
