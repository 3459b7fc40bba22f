"""Refits: is ``fit.refit`` as right as a fresh fit, and for how many evaluations?

Ten programs, each fitted to its data and then again to five other sets of arguments: a twentieth
more rows and fewer, half as many rows more, a narrower prior, and data that are far away. Beside
each refit stands a fresh fit to the same arguments. Means and standard deviations of all numbers
are compared by their Monte Carlo errors. A record of every pair is written to refit.jsonl, and a
table by kind to refit.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from benchmarks import records
from benchmarks.arguments import add_common, add_resume, count
from benchmarks.hosts import BACKENDS, Host, fitted, host_of
from benchmarks.records import Record
from benchmarks.study import Study, backends_of

#: Rows that a first fit has, and standard deviation of its priors; those of the narrower one.
ROWS, WIDE, NARROW = 60, 3.0, 2.0
#: Probability of calling a right refit wrong, over all figures of a pair; and by how much a
#: standard deviation and a mean, in standard deviations, may be off beside.
LEVEL, TOLERANCE = 1e-3, 0.02

Data = tuple[np.ndarray, np.ndarray]
Arguments = tuple[np.ndarray, np.ndarray, float]


class Family(NamedTuple):
    """A program and its data.

    Parameters
    ----------
    program : callable
        Of a host, rows (N, K), responses (N,) and the standard deviation of the priors.
    data : callable
        So many rows and responses; the first of more are those of fewer.
    far : callable
        Responses that are far from what a fit to these has seen.
    """

    program: Callable[..., None]
    data: Callable[[int], Data]
    far: Callable[[np.ndarray], np.ndarray]


def slopes_of(host: Host, x: Any, width: float) -> Any:
    """What a linear predictor adds, of slopes with a Normal prior."""
    zeros = host.array(np.zeros(x.shape[1]))
    return x @ host.sample("slopes", host.dist.Normal(zeros, width).to_event(1))


def linear(host: Host, x: Any, y: Any, width: float) -> None:
    """Known noise: the posterior is Normal."""
    mean = slopes_of(host, x, width)
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.Normal(mean, 0.7), obs=y)


def unknown_noise(host: Host, x: Any, y: Any, width: float) -> None:
    """Noise with a prior."""
    noise = host.sample("noise", host.dist.HalfNormal(host.array(1.0) * width))
    mean = slopes_of(host, x, width)
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.Normal(mean, noise), obs=y)


def robust(host: Host, x: Any, y: Any, width: float) -> None:
    """Noise with heavy tails."""
    noise = host.sample("noise", host.dist.HalfNormal(host.array(1.0) * width))
    mean = slopes_of(host, x, width)
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.StudentT(4.0, mean, noise), obs=y)


def logistic(host: Host, x: Any, y: Any, width: float) -> None:
    """Two classes."""
    logits = slopes_of(host, x, width)
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.Bernoulli(logits=logits), obs=y)


def poisson(host: Host, x: Any, y: Any, width: float) -> None:
    """Counts."""
    rate = host.xp.exp(slopes_of(host, x, width))
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.Poisson(rate), obs=y)


def groups(host: Host, x: Any, y: Any, width: float) -> None:
    """Eight groups, of which x (N, 8) says which a row is of."""
    mean = host.sample("mean", host.dist.Normal(host.array(0.0), width))
    scale = host.sample("scale", host.dist.HalfNormal(host.array(1.0) * width))
    with host.plate("groups", x.shape[1]):
        effect = host.sample("effect", host.dist.Normal(mean, scale))
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.Normal(x @ effect, 0.5), obs=y)


def square(host: Host, x: Any, y: Any, width: float) -> None:
    """The sign of the root cannot be told: two modes alike."""
    root = host.sample("root", host.dist.Normal(host.array(0.0), width))
    with host.plate("rows", len(y)):
        host.sample("y", host.dist.Normal(root**2 * x[:, 0], 0.7), obs=y)


def regression(size: int, seed: int, noise: float = 0.7) -> Callable[[int], Data]:
    """Data of so many slopes."""

    def data(number: int) -> Data:
        generator = np.random.default_rng(seed)
        slopes = generator.normal(size=size)
        x, errors = generator.normal(size=(2 * ROWS, size)), generator.normal(size=2 * ROWS)
        return x[:number], (x @ slopes + noise * errors)[:number]

    return data


def changed(data: Callable[[int], Data], change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """The same rows with other responses."""

    def other(number: int) -> Data:
        x, y = data(number)
        return x, change(y)

    return other


def counts(number: int) -> Data:
    """Counts of two inputs."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(2 * ROWS, 2))
    return x[:number], generator.poisson(np.exp(x @ [0.5, -0.4])).astype(float)[:number]


def of_groups(number: int) -> Data:
    """Eight groups in turn."""
    generator = np.random.default_rng(8)
    which = np.arange(2 * ROWS) % 8
    y = generator.normal(size=8)[which] + 0.5 * generator.normal(size=2 * ROWS)
    return np.eye(8)[which][:number], y[:number]


def ones(number: int) -> Data:
    """A column of ones, with responses about 1."""
    generator = np.random.default_rng(9)
    y = 1.0 + 0.7 * generator.normal(size=2 * ROWS)
    return np.ones((number, 1)), y[:number]


FAMILIES: dict[str, Family] = {
    "mean": Family(linear, ones, lambda y: y + 20.0),
    "slopes-5d": Family(linear, regression(5, 1), lambda y: -4.0 * y),
    "slopes-20d": Family(linear, regression(20, 2), lambda y: -4.0 * y),
    "noise-1d": Family(unknown_noise, regression(1, 3), lambda y: -4.0 * y),
    "noise-4d": Family(unknown_noise, regression(4, 4), lambda y: -4.0 * y),
    "robust-3d": Family(robust, regression(3, 5), lambda y: -4.0 * y),
    "classes-4d": Family(
        logistic, changed(regression(4, 6), lambda y: (y > 0.0) * 1.0), lambda y: 1.0 - y
    ),
    "counts-2d": Family(poisson, counts, lambda y: 10.0 * y),
    "groups-8": Family(groups, of_groups, lambda y: y + 20.0),
    "two-modes": Family(square, ones, lambda y: y + 4.0),
}


def more(family: Family, number: int) -> Arguments:
    """So many rows with the wide prior."""
    return *family.data(number), WIDE


def far(family: Family) -> Arguments:
    """Responses that are far away."""
    x, y = family.data(ROWS)
    return x, family.far(y), WIDE


#: What a refit is given.
KINDS: dict[str, Callable[[Family], Arguments]] = {
    "a twentieth more rows": lambda family: more(family, ROWS + ROWS // 20),
    "a twentieth fewer rows": lambda family: more(family, ROWS - ROWS // 20),
    "half as many rows more": lambda family: more(family, ROWS + ROWS // 2),
    "a narrower prior": lambda family: (*family.data(ROWS), NARROW),
    "data far away": far,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks refit`."""
    add_common(parser)
    parser.add_argument("--programs", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=count, default=1, help="of each pair (1)")
    add_resume(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run all pairs that are not recorded yet; the exit status."""
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("refit", arguments.out, **resumed)
    for backend in backends_of(arguments.backend):
        for name in arguments.programs:
            for seed in range(arguments.seeds):
                pairs = Pairs(backend, FAMILIES[name], seed)
                for kind in KINDS:
                    study.run(kind, backend, name, seed, {}, partial(pairs.measured, kind))
    return study.report(f"# Refits\n\n{table(study.runs)}")


class Pairs:
    """A fit of a family, and its refits."""

    def __init__(self, backend: str, family: Family, seed: int) -> None:
        self.backend, self.family, self.seed = backend, family, seed
        self._before: Any = None

    def _fit(self, arguments: Arguments, seed: int) -> Any:
        program = partial(self.family.program, host_of(self.backend))
        return fitted(self.backend, program, *self._arrays(arguments), seed=seed)

    def _arrays(self, arguments: Arguments) -> tuple[Any, Any, float]:
        array = host_of(self.backend).array
        return array(arguments[0]), array(arguments[1]), arguments[2]

    def measured(self, kind: str) -> dict[str, Any]:
        """A refit beside a fresh fit."""
        arguments = KINDS[kind](self.family)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._before is None:
                self._before = self._fit(more(self.family, ROWS), self.seed)
            refit = self._before.refit(*self._arrays(arguments), progress_bar=False)
            fresh = self._fit(arguments, self.seed + 1_000)
        way = refit.history[0].note
        return {
            "evaluations before": self._before.verdict.evaluations,
            "evaluations": refit.verdict.evaluations,
            "evaluations of a fresh fit": fresh.verdict.evaluations,
            "apart": apart(refit, fresh),
            "level": refit.verdict.level,
            "trusted": refit.verdict.trusted and fresh.verdict.trusted,
            "anew": way.startswith("from anew"),
            "way": way,
        }


def apart(one: Any, other: Any) -> float:
    """The largest difference of a mean or standard deviation, by what is allowed: 1 at most.

    Allowed are errors of effective draws at a level for all figures together, and a tolerance.
    """
    of_one, of_other = _figures(one), _figures(other)
    scale = of_other[1][0]
    differences = np.stack([of_one[k][0] - of_other[k][0] for k in range(2)]) / scale
    errors = np.stack([np.hypot(of_one[k][1], of_other[k][1]) for k in range(2)]) / scale
    quantile = -float(ndtri(0.5 * LEVEL / differences.size))
    return float((np.abs(differences) / np.hypot(TOLERANCE, quantile * errors)).max())


def _figures(fit: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations of all numbers, each with its errors."""
    draws = {name: np.asarray(each, float) for name, each in fit.draws.items()}
    flat = np.concatenate([each.reshape(len(each), -1) for each in draws.values()], 1)
    sizes = [each[0].size for each in draws.values()]
    worth = np.repeat([fit.verdict.by_site[name].ess_bulk for name in draws], sizes)
    mean, sd = flat.mean(0), flat.std(0)
    kurtosis = np.mean(np.square(np.square((flat - mean) / sd)), 0)
    return [(mean, sd / np.sqrt(worth)), (sd, sd * np.sqrt((kurtosis - 1.0) / 4.0 / worth))]


def table(found: Sequence[Record]) -> str:
    """By kind: how many are as fresh fits, and what they take of these; one that failed is none."""
    rows = []
    for backend in BACKENDS:
        for kind in KINDS:
            runs = [each for each in found if (each.backend, each.method) == (backend, kind)]
            own = [each.figures for each in runs if not each.failed]
            if not own:
                continue
            shares = [each["evaluations"] / each["evaluations of a fresh fit"] for each in own]
            rows.append(
                {
                    "package": records.LABELS[backend],
                    "other arguments": kind,
                    "refits": len(runs),
                    "trusted": sum(each["trusted"] for each in own),
                    "as a fresh fit": sum(each["apart"] <= 1.0 for each in own),
                    "from anew": sum(each["anew"] for each in own),
                    "evaluations": round(np.median([each["evaluations"] for each in own])),
                    "of a fresh fit's": f"{np.median(shares):.2f}",
                }
            )
    return records.markdown_table(rows)
