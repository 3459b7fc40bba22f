"""Fits of every set, split and method, judged on test rows."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from functools import partial
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import Dataset, Split
from benchmarks.predictive import Draws, predictive_scores
from benchmarks.regression import report
from benchmarks.study import Study, backends_of
from benchmarks.variance_reduction.methods import METHODS, Method, Schedule, Trainer

BATCH, ANCHOR_EVERY, PARTICLES, CHECKPOINTS, FRESH_BATCHES = 128, 8, 32, 8, 20
#: Factors of the noise's standard deviation that held-out rows choose from.
NOISE_FACTORS = np.exp(np.linspace(-0.5, 1.0, 31))
HELD_OUT, MOST_HELD_OUT = 0.1, 500
#: Sets with more rows search the step size with a quarter of the steps, and have one split.
LARGE = 20_000


@dataclasses.dataclass(frozen=True)
class Case:
    """A set's data with what the protocol sets for it.

    Attributes
    ----------
    name, backend : str
    data : Dataset
    hidden : int
        Hidden units.
    steps : int
        Steps of SVGD.
    rates : tuple of float
        Step sizes to choose from.
    falling : bool
        Whether step sizes fall to 0 along a cosine.
    """

    name: str
    backend: str
    data: Dataset
    hidden: int
    steps: int
    rates: tuple[float, ...]
    falling: bool

    def trainer(
        self, split: Split, method: Method, rate: float, seed: int, share: float = 1.0
    ) -> tuple[Trainer, int, Schedule]:
        """A run on standardised rows, its number of steps, and its schedule."""
        rows = len(split.x_train)
        schedule = Schedule(rows, min(BATCH, rows), ANCHOR_EVERY, PARTICLES)
        # Whole cycles between checkpoints, so that the anchor's age is the same at each.
        cycle = ANCHOR_EVERY * CHECKPOINTS
        steps = max(1, round(schedule.steps(method, self.steps * share) / cycle)) * cycle
        schedule = dataclasses.replace(schedule, falling_over=steps if self.falling else 0)
        module = importlib.import_module(f"benchmarks.regression.{self.backend}_network")
        data = (split.x_train, split.y_train)
        trainer: Trainer = module.Trainer(data, self.hidden, schedule, method, rate, seed)
        return trainer, steps, schedule


def run(arguments: argparse.Namespace) -> int:
    """Run the sets that are there; the exit status."""
    study = Study("regression", arguments.out)
    for name, data in datasets.there(arguments.sets, load):
        hidden = 128 if name == "protein" else 64
        published = len(data.splits) if arguments.full else min(arguments.splits, len(data.splits))
        drawn = 50 if arguments.full else arguments.random_splits
        if len(data.x) > LARGE and not arguments.full:
            published, drawn = min(1, published), min(1, drawn)
        splits = {f"published {index}": data.split(index) for index in range(published)}
        splits |= {f"random {seed}": data.random_split(seed, 0.1) for seed in range(drawn)}
        for backend in backends_of(arguments.backend):
            case = Case(
                name,
                backend,
                data,
                hidden,
                arguments.steps,
                tuple(arguments.rates),
                not arguments.constant,
            )
            for method in arguments.methods:
                fit_and_test(study, case, splits, method)
    figures = (*report.FIGURES, "tuned log likelihood", "variance ratio", "gradients")
    return study.report(study.overview(*figures), report.picture)


def load(name: str) -> Dataset:
    """A set by its name.

    ``energy_leaked`` is what the paper's code has: the cooling load, of which the heating load is
    a feature.
    """
    if name != "energy_leaked":
        return datasets.external(name)
    data = datasets.external("energy")
    return dataclasses.replace(
        data,
        x=np.column_stack([data.x, data.y]),
        y=np.asarray(datasets.external_array("energy", "y_cooling"), np.float64),
    )


def fit_and_test(study: Study, case: Case, splits: dict[str, Split], method_name: str) -> None:
    """For each split, choose the step size on rows held out of its training rows, and fit."""
    method = METHODS[method_name]
    for seed, (label, split) in enumerate(splits.items()):
        chosen, searched = choose(case, split, method)
        settings = {"split": label, "rate": chosen[0], "noise factor": chosen[1]}
        settings |= {"searched": searched, "hidden": case.hidden, "batch": BATCH}
        settings |= {"anchor every": ANCHOR_EVERY, "particles": PARTICLES, "steps": case.steps}
        settings |= {"falling": case.falling}
        scaled = split.standardised(response=True)
        work = partial(follow, case, scaled, method, seed, *chosen)
        study.run(method_name, case.backend, case.name, seed, settings, work)


def choose(
    case: Case, split: Split, method: Method
) -> tuple[tuple[float, float], dict[str, list[float]]]:
    """Step size and noise factor with the best held-out likelihood, and what each rate had."""
    order = np.random.default_rng(0).permutation(len(split.x_train))
    number = min(MOST_HELD_OUT, round(HELD_OUT * len(order)))
    held_out, kept = order[:number], order[number:]
    inner = Split(
        split.x_train[kept], split.y_train[kept], split.x_train[held_out], split.y_train[held_out]
    ).standardised(response=True)
    share = 0.25 if len(case.data.x) > LARGE else 1.0
    found = {}
    for rate in case.rates:
        trainer, steps, _ = case.trainer(inner, method, rate, 0, share)
        try:
            trainer.advance(steps)
        except RuntimeError as error:  # a rate that breaks down loses
            print(f"rate {rate:g}: {type(error).__name__}: {error}")
            found[rate] = (-np.inf, -np.inf, 1.0)
            continue
        found[rate] = best_noise(trainer.draws(), inner)
    # By the likelihood as it is: the factor is an extra.
    best = max(found, key=lambda rate: found[rate][0])
    return (best, found[best][2]), {f"{rate:g}": list(value) for rate, value in found.items()}


def best_noise(draws: Draws, split: Split) -> tuple[float, float, float]:
    """Test log likelihood as it is, with the best factor of the noise, and that factor."""
    tried = {
        float(factor): -predictive_scores(draws, split, float(factor))["NLL"]
        for factor in (1.0, *NOISE_FACTORS)
    }
    best = max(tried, key=lambda factor: tried[factor])
    return tried[1.0], tried[best], best


def judge(draws: Draws, split: Split, noise_factor: float) -> dict[str, float]:
    """Test RMSE and mean log likelihood of the mixture over draws, in original units.

    "tuned log likelihood" has the noise's standard deviation times the factor.
    """
    found = predictive_scores(draws, split)
    return {
        "RMSE": found["RMSE"],
        "log likelihood": -found["NLL"],
        "tuned log likelihood": -predictive_scores(draws, split, noise_factor)["NLL"],
    }


def follow(
    case: Case, split: Split, method: Method, seed: int, rate: float, noise_factor: float
) -> dict[str, Any]:
    """Figures along a run."""
    trainer, steps, schedule = case.trainer(split, method, rate, seed)
    figures: dict[str, list[float]] = {"gradients": []}
    for part in range(1, CHECKPOINTS + 1):
        trainer.advance(steps // CHECKPOINTS)
        taken = part * (steps // CHECKPOINTS)
        found = {"gradients": taken * schedule.gradients_per_step(method)}
        found |= judge(trainer.draws(), split, noise_factor)
        if method.reduced:
            found["variance ratio"] = trainer.variance_ratio(FRESH_BATCHES)
        for name, value in found.items():
            figures.setdefault(name, []).append(value)
    return figures
