"""Many data sets: is each fit of ``fit_many`` right, and what does it save?

Data sets of thirty rows in five groups are drawn from a small hierarchical program, parameters from
their priors, so that the ranks of these among the draws are uniform where fits are right
(S. Talts and others, "Validating Bayesian inference algorithms with simulation-based calibration",
2018). ``fit_many`` fits them, fifty at a time, and ``fit`` the first few, one after the other. A
record of each fifty is written to fit-many.jsonl, and a table to fit-many.md.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import chisquare

from benchmarks import records
from benchmarks.arguments import add_common, add_resume, count
from benchmarks.hosts import BACKENDS, Host, fitted, host_of
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, forget_programs

#: Which group each row of a data set is of, bins that ranks are counted in, and data sets that are
#: fitted at a time.
GROUPS, BINS, BLOCK = np.repeat(np.arange(5), 6), 20, 50
TOGETHER, ONE_BY_ONE = "fit_many", "fit"


def program(host: Host, y: Any) -> None:
    """Groups with a mean and a spread."""
    array, dist = host.array, host.dist
    mean = host.sample("mean", dist.Normal(array(0.0), array(2.0)))
    spread = host.sample("spread", dist.HalfNormal(array(1.0)))
    with host.plate("groups", 5):
        effect = host.sample("effect", dist.Normal(mean, spread))
    with host.plate("rows", len(GROUPS)):
        host.sample("y", dist.Normal(effect[array(GROUPS)], array(1.0)), obs=y)


def simulated(number: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Parameters by site, and data sets (number, rows): the first of a block."""
    generator = np.random.default_rng(seed)
    mean = 2.0 * generator.normal(size=BLOCK)
    spread = np.abs(generator.normal(size=BLOCK))
    effect = mean[:, None] + spread[:, None] * generator.normal(size=(BLOCK, 5))
    y = effect[:, GROUPS] + generator.normal(size=(BLOCK, len(GROUPS)))
    known = {"mean": mean, "spread": spread, "effect": effect}
    return {name: each[:number] for name, each in known.items()}, y[:number]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks fit-many`."""
    add_common(parser)
    parser.add_argument("--data-sets", type=count, default=1_000, help="of fit_many (1,000)")
    alone = f"data sets that fit fits, {BLOCK} at most (20)"
    parser.add_argument("--alone", type=count, default=20, help=alone)
    add_resume(parser)


def main(arguments: argparse.Namespace) -> int:
    """Fit them both ways; the exit status."""
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("fit-many", arguments.out, **resumed)
    alone = min(arguments.alone, BLOCK)
    for backend in backends_of(arguments.backend):
        work = partial(measured, ONE_BY_ONE, backend, alone, 0)
        study.run(ONE_BY_ONE, backend, "groups", 0, {"data sets": alone}, work)
        for block in range(math.ceil(arguments.data_sets / BLOCK)):
            number = min(BLOCK, arguments.data_sets - block * BLOCK)
            work = partial(measured, TOGETHER, backend, number, block)
            study.run(TOGETHER, backend, "groups", block, {"data sets": number}, work)
    return study.report(f"# Many data sets\n\n{table(study.runs)}")


def measured(method: str, backend: str, number: int, seed: int) -> dict[str, Any]:
    """What fits to so many data sets take, and where their parameters lie among the draws.

    The processor's seconds include compiling, and no imports.
    """
    host = host_of(backend)
    importlib.import_module(f"{backend}_ext")
    forget_programs()
    known, y = simulated(number, seed)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == TOGETHER:
            found = fitted(backend, partial(program, host), host.array(y), seed=seed, by=method)
            fits = found.fits
        else:
            # As a user does it who calls fit for each.
            fits = [
                fitted(backend, partial(program, host), host.array(each), seed=k)
                for k, each in enumerate(y)
            ]
    spent = time.process_time() - started
    return {
        "data sets": number,
        "processor seconds": spent,
        "evaluations": sum(fit.verdict.evaluations for fit in fits),
        "trusted": sum(fit.verdict.trusted for fit in fits),
        "shares": {
            name: shares([fit.draws[name] for fit in fits], known[name], seed) for name in known
        },
    }


def shares(draws: Sequence[Any] | np.ndarray, known: np.ndarray, seed: int) -> list[float]:
    """Of each data set the share of draws below its parameter, uniform where fits are right.

    Of effects it is that of the first group, since those of one data set are not independent; the
    place among S draws is one of S + 1, with a uniform part of it.
    """
    # Numbers of their own: the seed alone gives the parameters.
    spare = np.random.default_rng((seed, 1)).uniform(size=len(draws))
    found = []
    for each, truth, part in zip(draws, known.reshape(len(known), -1)[:, 0], spare, strict=True):
        values = np.asarray(each, float).reshape(len(each), -1)[:, 0]
        found.append(float(((values < truth).sum() + part) / (len(values) + 1.0)))
    return found


def least_p(blocks: Sequence[dict[str, Any]]) -> float:
    """Of the sites' counts of shares by bin the least p value of a chi-squared test."""
    found = []
    for name in blocks[0]["shares"]:
        every = np.concatenate([each["shares"][name] for each in blocks])
        counts = np.histogram(every, BINS, (0.0, 1.0))[0]
        found.append(float(chisquare(counts).pvalue))
    return min(found)


def table(found: Sequence[Record]) -> str:
    """Both ways in both packages; data sets of a block that failed count as not trusted."""
    rows = []
    for backend in BACKENDS:
        alone = math.nan
        for method in (ONE_BY_ONE, TOGETHER):
            runs = [each for each in found if (each.backend, each.method) == (backend, method)]
            own = [each.figures for each in runs if not each.failed]
            if not own:
                continue
            number = sum(each["data sets"] for each in own)
            seconds = sum(each["processor seconds"] for each in own) / number
            alone = seconds if method == ONE_BY_ONE else alone
            rows.append(
                {
                    "package": records.LABELS[backend],
                    "by": f"`{method}`",
                    "data sets": sum(each.settings["data sets"] for each in runs),
                    "trusted": sum(each["trusted"] for each in own),
                    "evaluations of each": round(sum(each["evaluations"] for each in own) / number),
                    "processor s of each": f"{seconds:.2f}",
                    "of those of `fit`": f"{seconds / alone:.2f}",
                    "least p of ranks": f"{least_p(own):.3f}" if method == TOGETHER else None,
                }
            )
    return records.markdown_table(rows)
