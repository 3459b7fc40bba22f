"""Both protocols: fit to the training file and test; and predict each row before it is learnt."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks import datasets
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, curves
from benchmarks.variance_reduction.methods import METHODS, Floats, Method, Schedule, Trainer

BATCH, ANCHOR_EVERY, PARTICLES, CHECKPOINTS, FRESH_BATCHES = 128, 128, 100, 10, 30
NUTS_DRAWS = 250
RATES = tuple(2.0**-power for power in range(1, 10))
#: On cod_rna the paper trains for 100 epochs instead of 20.
LONGER = {"cod_rna": 5}
#: Figures of the report; curves by their ends.
FIGURES = ("accuracy", "log likelihood", "gradients", "variance ratio")
#: Data whose features have very different units.
STANDARDISED = ("cod_rna", "covtype_subset")
#: Methods that learn one row at a time; equal gradients would see rows several times.
ONLINE = ("SVGD", "SVRG, point estimate", "SVGD-VR")


@dataclass(frozen=True)
class Budget:
    """How much is run.

    Attributes
    ----------
    folds : int
        Folds of the training rows, of ten, that choose the step size.
    rates : tuple of float
    search_share : float
        Share of the epochs that each fit of the search takes.
    seeds, online_seeds : int
    online_rows : int or None
        Rows of the online protocol; None for all.
    """

    folds: int
    rates: tuple[float, ...]
    search_share: float
    seeds: int
    online_seeds: int
    online_rows: int | None


def run(arguments: argparse.Namespace) -> int:
    """Run the sets that are there; the exit status."""
    budget = (
        Budget(10, RATES, 1.0, 100, 10, None)
        if arguments.full
        else Budget(1, RATES[::2], 0.2, arguments.seeds, arguments.seeds, arguments.online_rows)
    )
    study = Study("logistic", arguments.out)
    for name, split in datasets.there(arguments.sets, load):
        epochs = arguments.epochs * LONGER.get(name, 1)
        if arguments.reference:
            predict_by_nuts(study, name, split)
        for backend in backends_of(arguments.backend):
            for method in METHODS if "test" in arguments.protocols else ():
                fit_and_test(study, name, split, backend, method, epochs, budget)
            for method in ONLINE if "online" in arguments.protocols else ():
                learn_online(study, name, split, backend, method, budget)
    return study.report(study.overview(*FIGURES, by=("protocol",)), picture)


def picture(runs: Sequence[Record], path: Path) -> None:
    """Accuracy on test rows over sweeps of gradients."""
    own = [run for run in runs if "gradients" in run.figures]
    if own:
        curves(own, "gradients", "accuracy", path)


def load(name: str) -> datasets.Split:
    """Training and test rows with a column of ones."""
    data = datasets.external(name)
    split = data.split(0) if data.splits else data.random_split(0)
    if name in STANDARDISED:
        split = split.standardised()
    return datasets.Split(
        with_ones(split.x_train), split.y_train, with_ones(split.x_test), split.y_test
    )


def with_ones(x: Floats) -> Floats:
    """Features with a column of ones, for the intercept."""
    return np.column_stack([x, np.ones(len(x))])


def schedule_of(rows: int, online: bool = False) -> Schedule:
    """The paper's schedule."""
    return Schedule(rows, 1 if online else BATCH, ANCHOR_EVERY, PARTICLES, ordered=online)


def steps_of(method: Method, rows: int, epochs: float) -> int:
    """Steps of a run: about those of the epochs, or as many as take the gradients of SVGD-VR.

    Whole cycles between checkpoints, so that the anchor's age is the same at each.
    """
    parts = CHECKPOINTS * ANCHOR_EVERY
    steps = max(1, round(epochs * rows / BATCH / parts)) * parts
    found = schedule_of(rows).steps(method, steps)
    return max(1, round(found / CHECKPOINTS)) * CHECKPOINTS


def make_trainer(
    backend: str,
    x: Floats,
    y: NDArray[Any],
    method: Method,
    rate: float,
    seed: int,
    online: bool = False,
) -> Trainer:
    """Start a run."""
    module = importlib.import_module(f"benchmarks.logistic.{backend}_program")
    trainer: Trainer = module.Trainer((x, y), schedule_of(len(x), online), method, rate, seed)
    return trainer


def judge(weights: Floats, x: Floats, y: NDArray[Any]) -> dict[str, float]:
    """Accuracy and mean log likelihood of the mean prediction."""
    chances = np.zeros(len(x))
    for w in weights:
        chances += expit(x @ w) / len(weights)
    chances = np.clip(chances, 1e-12, 1.0 - 1e-12)
    return {
        "accuracy": 100.0 * float(np.mean((chances > 0.5) == (y > 0))),
        "log likelihood": float(np.mean(np.where(y > 0, np.log(chances), np.log1p(-chances)))),
    }


def choose_rate(
    split: datasets.Split, backend: str, method: Method, epochs: float, budget: Budget
) -> tuple[float, dict[str, float]]:
    """Step size with the best validation likelihood, and the likelihood of each."""
    order = np.random.default_rng(0).permutation(len(split.x_train))
    folds = np.array_split(order, 10)[: budget.folds]
    scores: dict[float, float] = {}
    for rate in budget.rates:
        found = []
        for held_out in folds:
            kept = np.setdiff1d(order, held_out)
            try:
                trainer = make_trainer(
                    backend, split.x_train[kept], split.y_train[kept], method, rate, 0
                )
                trainer.advance(steps_of(method, len(kept), epochs * budget.search_share))
            except RuntimeError as error:  # a rate that breaks down loses
                print(f"rate {rate:g}: {type(error).__name__}: {error}")
                found.append(-np.inf)
                continue
            figures = judge(
                trainer.draws()["weights"], split.x_train[held_out], split.y_train[held_out]
            )
            found.append(figures["log likelihood"])
        scores[rate] = float(np.mean(found))
    best = max(scores, key=lambda rate: scores[rate])
    return best, {f"{rate:g}": score for rate, score in scores.items()}


def fit_and_test(
    study: Study,
    name: str,
    split: datasets.Split,
    backend: str,
    method_name: str,
    epochs: float,
    budget: Budget,
) -> None:
    """The non-online protocol (Table I, Fig. 1 and 2)."""
    method = METHODS[method_name]
    rate, searched = choose_rate(split, backend, method, epochs, budget)
    rows = len(split.x_train)
    steps = steps_of(method, rows, epochs)
    for seed in range(budget.seeds):
        settings = {"protocol": "test", "rate": rate, "searched": searched, "steps": steps}
        settings |= {"batch": BATCH, "anchor every": ANCHOR_EVERY, "epochs": epochs}

        def work(seed: int = seed) -> dict[str, Any]:
            trainer = make_trainer(backend, split.x_train, split.y_train, method, rate, seed)
            return follow(trainer, method, split, steps)

        study.run(method_name, backend, name, seed, settings, work)


def predict_by_nuts(study: Study, name: str, split: datasets.Split) -> None:
    """What the posterior itself predicts on the test rows."""
    from benchmarks.logistic.reference import posterior_draws

    settings = {"protocol": "test", "draws": NUTS_DRAWS, "warm-up": NUTS_DRAWS}

    def work() -> dict[str, Any]:
        weights = posterior_draws(split.x_train, split.y_train, NUTS_DRAWS, 0)
        figures = judge(weights, split.x_test, split.y_test)
        return {key: [value] for key, value in figures.items()}

    study.run("NUTS", "numpyro", name, 0, settings, work)


def follow(trainer: Trainer, method: Method, split: datasets.Split, steps: int) -> dict[str, Any]:
    """Accuracy, likelihood and variance ratio along a run."""
    cost = schedule_of(len(split.x_train)).gradients_per_step(method)
    figures: dict[str, list[float]] = {"gradients": [], "accuracy": [], "log likelihood": []}
    reduced = method.reduced and not method.point
    taken = 0
    if reduced:
        # Before the particles have settled: one step from the first anchor, and half a cycle.
        figures |= {"variance ratio": [], "variance ratio at": []}
        for age in (1, ANCHOR_EVERY // 2):
            trainer.advance(age - taken)
            taken = age
            figures["variance ratio"].append(trainer.variance_ratio(FRESH_BATCHES))
            figures["variance ratio at"].append(cost * taken)
    for part in range(1, CHECKPOINTS + 1):
        trainer.advance(part * (steps // CHECKPOINTS) - taken)
        taken = part * (steps // CHECKPOINTS)
        figures["gradients"].append(cost * taken)
        weights = trainer.draws()["weights"]
        for key, value in judge(weights, split.x_test, split.y_test).items():
            figures[key].append(value)
        if reduced:
            figures["variance ratio"].append(trainer.variance_ratio(FRESH_BATCHES))
            figures["variance ratio at"].append(cost * taken)
    return figures


def learn_online(
    study: Study,
    name: str,
    split: datasets.Split,
    backend: str,
    method_name: str,
    budget: Budget,
) -> None:
    """The pseudo-online protocol (Table II and Fig. 3): each row is predicted, then learnt.

    Only of plain SVGD is a row new when it is predicted: anchors take the scores of all rows.
    """
    method = METHODS[method_name]
    for seed in range(budget.online_seeds):
        order = np.random.default_rng(seed).permutation(len(split.x_train))
        x, y = split.x_train[order], split.y_train[order]
        rows = len(x) if budget.online_rows is None else min(budget.online_rows, len(x))
        tried = max(20, rows // 10)
        searched = {}
        for rate in budget.rates:
            try:
                searched[rate] = predict_and_learn(backend, x, y, method, rate, seed, tried)[-1]
            except RuntimeError:
                searched[rate] = -np.inf
        rate = max(searched, key=lambda rate: searched[rate])
        settings = {"protocol": "online", "rate": rate, "rows": rows}
        settings["searched"] = {f"{rate:g}": score for rate, score in searched.items()}

        def work(given: Any = (x, y), rate: Any = rate, seed: Any = seed, rows: Any = rows) -> Any:
            x, y = given
            curve = predict_and_learn(backend, x, y, method, rate, seed, rows)
            marks = np.unique(np.linspace(1, rows, 50).astype(int))
            return {"rows": marks, "accuracy": [curve[mark - 1] for mark in marks]}

        study.run(method_name, backend, name, seed, settings, work)


def predict_and_learn(
    backend: str,
    x: Floats,
    y: NDArray[Any],
    method: Method,
    rate: float,
    seed: int,
    rows: int,
) -> list[float]:
    """Share of rows that were predicted rightly before they were learnt, after each row."""
    trainer = make_trainer(backend, x, y, method, rate, seed, online=True)
    right, shares = 0, []
    for index in range(rows):
        chance = float(np.mean(expit(trainer.draws()["weights"] @ x[index])))
        right += int((chance > 0.5) == (y[index] > 0))
        shares.append(100.0 * right / (index + 1))
        trainer.advance(1)
    return shares
