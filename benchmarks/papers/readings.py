"""How the records of each study are read: from the runs of one package to a figure by seed.

Where a study tries several step sizes, those runs count that the study itself would choose, and
where a run was made twice, the later one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.bnn import report as bnn_report
from benchmarks.papers.claims import Reading, Values
from benchmarks.records import Record
from benchmarks.score_vi.minibatch import tuned
from benchmarks.synthetic import runs as synthetic_runs
from benchmarks.synthetic.experiments import FORWARD, all_experiments

Runs = Sequence[Record]
#: A divergence that counts as none: estimates of smaller ones are noise.
LEAST = 1e-6
#: Epochs of the paper's Figure 5.
FIRST_EPOCHS = 20


def _own(runs: Runs, benchmark: str, model: str, method: str, **settings: Any) -> list[Record]:
    return [
        run
        for run in runs
        if (run.benchmark, run.model, run.method) == (benchmark, model, method)
        and all(run.settings.get(name) == value for name, value in settings.items())
    ]


def _values(runs: Iterable[Record], figure: Callable[[Record], float]) -> Values:
    return {int(run.seed or 0): math.nan if run.failed else float(figure(run)) for run in runs}


def _validated(runs: Runs, candidate: str) -> list[Record]:
    """Runs at the candidate with the best validation at the first seed, as the study chose it.

    Where a method was run with several settings, those of its last run count.
    """

    def kind(run: Record) -> str:
        kept = {key: run.settings[key] for key in run.settings if key not in (candidate, "split")}
        return json.dumps(kept, sort_keys=True, default=str)

    if not runs:
        return []
    runs = [run for run in runs if kind(run) == kind(runs[-1])]
    first = min(int(run.seed or 0) for run in runs)
    searched = [run for run in runs if int(run.seed or 0) == first]

    def validation(run: Record) -> float:
        value = run.figures.get("validation", math.inf)
        return math.inf if run.failed or not math.isfinite(value) else float(value)

    best = min(searched, key=validation).settings.get(candidate)
    return [run for run in runs if run.settings.get(candidate) == best]


#: Summaries of a figure's list along a run.
SUMMARIES: dict[str, Callable[[Any], float]] = {
    "median": np.median,
    "largest": np.max,
    "smallest": np.min,
}


def _along(values: Sequence[float], at: int | str) -> float:
    return float(values[at] if isinstance(at, int) else SUMMARIES[at](values))


#: Methods as pages name them.
NAMES = {
    "SVGD": "`SVGD`",
    "SVGD-VR": "`SVGDVR`",
    "SVGD-VR, reset": "`SVGDVR`",
    "SVGD, equal gradients": "`SVGD`, equal gradients",
    "SVRG, point estimate": "SVRG",
    "Ensemble": "`DeepEnsemble`",
    "ensemble": "`DeepEnsemble`",
    "WGD": "`WGD`",
    "SVN": "`SVN`",
    "LL-SVN": "`SVN` of the last layer",
    "Ours": "gradient form",
    "ours, gradient": "gradient form",
    "ProximalScoreVI, gradient": "gradient form",
    "Ours, regression": "closed form",
    "ours": "closed form",
    "ProximalScoreVI": "closed form",
    "ProximalScoreVI, full": "closed form",
    "ADVI, full": "ADVI",
    "ADVI, planar flow": "ADVI",
    "ProximalScoreVI, planar flow": "gradient form",
    "proximal": "gradient form",
}


def name_of(method: str) -> str:
    """A method as pages name it."""
    return NAMES.get(method, method)


def logistic(
    model: str,
    protocol: str,
    method: str,
    figure: str = "accuracy",
    at: int = -1,
    name: str | None = None,
) -> Reading:
    """A figure of a logistic regression, at its end or at another checkpoint."""

    def of(runs: Runs) -> Values:
        own = _own(runs, "logistic", model, method, protocol=protocol)
        return _values(own, lambda run: _along(run.figures[figure], at))

    return Reading(name or name_of(method), of)


def regression(
    model: str, method: str, figure: str, at: int | str = -1, name: str | None = None
) -> Reading:
    """A figure of regression networks, by the split."""

    def of(runs: Runs) -> Values:
        own = _own(runs, "regression", model, method)
        return _values(own, lambda run: _along(run.figures[figure], at))

    return Reading(name or name_of(method), of)


def _networks(runs: Runs, model: str, method: str, particles: int) -> list[Record]:
    return bnn_report.chosen(_own(runs, "bnn", model, method, particles=particles))


def bnn(
    model: str,
    method: str,
    figure: str = "test NLL",
    part: str = "at best",
    particles: int = 5,
    name: str | None = None,
) -> Reading:
    """A figure of networks at the epoch with the best validation, or the last, by the split."""

    def of(runs: Runs) -> Values:
        own = _networks(runs, model, method, particles)
        return _values(own, lambda run: run.figures[part][figure])

    return Reading(name or name_of(method), of)


def bnn_first_epochs(model: str, method: str, figure: str = "test NLL") -> Reading:
    """A figure of networks after the first twenty epochs."""

    def of(runs: Runs) -> Values:
        def after(run: Record) -> float:
            curves = run.figures["curves"]
            last = int(np.searchsorted(curves["epoch"], FIRST_EPOCHS, "right")) - 1
            return float(curves[figure][last])

        return _values(_networks(runs, model, method, 5), after)

    return Reading(name_of(method), of)


def bnn_in_the_time_of(model: str, method: str, other: str) -> Reading:
    """Test NLL in the processor time of another method's whole run, at the same split."""

    def of(runs: Runs) -> Values:
        whole = _networks(runs, model, other, 5)
        limits = _values(whole, lambda run: run.figures["at last"]["processor seconds"])

        def in_time(run: Record) -> float:
            curves = run.figures["curves"]
            passed = np.searchsorted(curves["processor seconds"], limits[int(run.seed or 0)])
            return float(curves["test NLL"][max(0, int(passed) - 1)])

        own = _networks(runs, model, method, 5)
        return _values((run for run in own if int(run.seed or 0) in limits), in_time)

    return Reading(name_of(method), of)


def synthetic(
    experiment: str, case: str, method: str, measure: str | None = None, below: float | None = None
) -> Reading:
    """Final divergence of a fit of a known target at its best rate, or iterations until below."""

    def of(runs: Runs) -> Values:
        found = [run for run in runs if run.settings.get("experiment") == experiment]
        every = all_experiments()[experiment]
        known = next(each for each in every.cases if each.name == case)
        engine = next(each for each in known.methods if each.name == method)
        chosen = synthetic_runs.chosen_runs(found, known, engine)
        if below is None:
            return _values(
                chosen, lambda run: max(LEAST, synthetic_runs.final(run, measure or FORWARD))
            )
        return _values(
            chosen,
            lambda run: (
                synthetic_runs.evaluations_below(run, below)
                / (synthetic_runs.evaluations_per_iteration(run) or 1)
            ),
        )

    return Reading(name_of(method), of)


def score_vi(model: str, method: str, figure: str, experiment: str = "uci") -> Reading:
    """A figure under minibatch scores at the best rate in hindsight."""
    chosen_by = "NLL" if experiment == "uci" else "worst mean error"

    def of(runs: Runs) -> Values:
        own = _own(runs, f"score-vi {experiment}", model, method)
        return _values(tuned(own, chosen_by), lambda run: run.figures[figure])

    return Reading(name_of(method), of)


def step(figure: str) -> Reading:
    """A step on a network of 20 million weights over ADVI's, by the round; one peak of memory."""
    method = "ours"

    def of(runs: Runs) -> Values:
        own = {run.method: run for run in runs if run.benchmark == "score-vi memory"}
        if {method, "ADVI"} - set(own) or own[method].failed or own["ADVI"].failed:
            return {}
        ours, theirs = own[method].figures[figure], own["ADVI"].figures[figure]
        if not isinstance(ours, list):
            return {0: ours / theirs}
        pairs = zip(ours, theirs, strict=False)
        return {number: own / other for number, (own, other) in enumerate(pairs)}

    return Reading("gradient form over ADVI", of)


def small_data(percent: float, method: str, figure: str) -> Reading:
    """A figure of a classifier of a share of MNIST's images, at the paper's temperature."""

    def of(runs: Runs) -> Values:
        own = _own(runs, "images small-data", f"mnist {percent:g} %", method, temperature=1e-6)
        return _values(_validated(own, "learning rate"), lambda run: run.figures[figure])

    return Reading(name_of(method), of)


def lenet(model: str, method: str, figure: str = "NLL", rows: int | None = None) -> Reading:
    """A figure of an ensemble of LeNets."""

    def of(runs: Runs) -> Values:
        given = {} if rows is None else {"training rows": rows}
        own = _own(runs, "images lenet", model, method, **given)
        return _values(_validated(own, "rate"), lambda run: run.figures[figure])

    return Reading(name_of(method), of)


def forecasting(model: str, method: str, figure: str) -> Reading:
    """A figure of a forecaster."""

    def of(runs: Runs) -> Values:
        own = _own(runs, "forecasting", model, method)
        return _values(_validated(own, "learning rate"), lambda run: run.figures[figure])

    return Reading(name_of(method), of)


def posteriordb(model: str, method: str, noise: float) -> Reading:
    """Negative ELBO of a posterior's fit under noise at the better rate, by the seed."""

    def of(runs: Runs) -> Values:
        own = _own(runs, "posteriordb", model, method, noise=noise)

        def final(run: Record) -> float:
            value = float(run.figures["curves"]["negative ELBO"][-1])
            return value if math.isfinite(value) else math.nan

        by_rate: dict[Any, dict[int, float]] = {}
        for run in own:
            values = by_rate.setdefault(run.settings["rate"], {})
            values[int(run.seed or 0)] = math.nan if run.failed else final(run)

        def mean(rate: Any) -> float:
            found = float(np.mean(list(by_rate[rate].values())))
            return found if math.isfinite(found) else math.inf

        return by_rate[min(by_rate, key=mean)] if by_rate else {}

    return Reading(name_of(method), of)


def noisy_scores(model: str, method: str, level: float, name: str) -> Reading:
    """Divergence from the best Normal at the end, by the seed, at the rate of an oracle."""

    def of(runs: Runs) -> Values:
        own = [
            run
            for run in _own(runs, "noisy-scores", model, method, level=level)
            if run.settings["part"] in ("comparison", "Pyro") and not run.failed
        ]
        last = own[-1].figures["KL"][-1] if own else []
        return {number: max(LEAST, float(value)) for number, value in enumerate(last)}

    return Reading(name, of)


def vision(method: str, figure: str) -> Reading:
    """A figure of a residual network from given weights."""

    def of(runs: Runs) -> Values:
        own = [run for run in runs if run.benchmark == "vision" and run.method == method]
        own = [run for run in own if run.settings["part"] == "fits"]
        return _values(own, lambda run: run.figures[figure])

    return Reading(name_of(method), of)


def row_noise(method: str, figure: str) -> Reading:
    """A ratio of variances of gradients with noise of its own in each row, by the network."""

    def of(runs: Runs) -> Values:
        own = [run for run in runs if run.benchmark == "row-noise" and run.settings["rows"] == 128]
        return _values(own, lambda run: 1.0 / run.figures[f"{method}: {figure}"])

    return Reading(f"variance with {method.replace('_', ' ')} over that without", of)


def plain(benchmark: str, model: str, method: str, figure: str, name: str | None = None) -> Reading:
    """A figure of a run as it is, by the seed."""

    def of(runs: Runs) -> Values:
        own = _own(runs, benchmark, model, method)
        return _values(own, lambda run: run.figures[figure])

    return Reading(name or name_of(method), of)
