"""What the flat-histogram examples share: the modes, the histogram of energies, the judgement.

Chains at a temperature of 1 do not leave a deep mode. Here the density is divided by an estimate of
how often each energy U = -log density comes up, so that all energies come up about equally often,
and the barrier's among them (F. Wang and D. Landau 2001; with stochastic gradients W. Deng, G. Lin
and F. Liang, "A contour stochastic gradient Langevin dynamics algorithm for simulations of
multi-modal distributions", 2020). Draws then count with the estimate as their weight.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import count
from benchmarks.records import Record, markdown_table
from docs.examples.recorded import recorded, row_of

Floats = NDArray[np.float64]

#: Two Normals of unit variance, ten deviations apart; chains begin in the small one. The prior is
#: about their middle, so that it leaves their masses as they are.
MEANS, MASSES, MIDDLE, PRIOR_SCALE = (0.0, 10.0), (0.1, 0.9), 5.0, 20.0


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the sampling.

    Attributes
    ----------
    chains, steps : int
    step_size : float
    block : int
        Steps between updates of the histogram.
    lowest, highest : float
        Energies between which the histogram is, from just below the modes' to above the barrier's.
    bins : int
    power : float
        Of the estimate that the density is divided by: 1 makes the histogram flat.
    gain, decay : float
        The b-th update moves by min(1, gain b^-decay).
    steepest : float
        Most that the estimate's logarithm changes for a unit of energy: what it falls by above all
        modes is 1, and steeper walls make steps of this size unstable.
    seed : int
    out : path
    """

    chains: int = 30
    steps: int = 24_000
    step_size: float = 0.1
    block: int = 20
    lowest: float = 4.9
    highest: float = 19.9
    bins: int = 30
    power: float = 0.75
    gain: float = 10.0
    decay: float = 0.6
    steepest: float = 2.0
    seed: int = 0
    out: Path = Path("out")

    @property
    def width(self) -> float:
        """Of a bin."""
        return (self.highest - self.lowest) / self.bins


def read_options(description: str, argv: Sequence[str] | None) -> Options:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--steps", type=count, default=Options.steps, help="of each chain")
    parser.add_argument("--chains", type=count, default=Options.chains)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    return Options(given.chains, given.steps, seed=given.seed, out=given.out)


def updated(options: Options, estimate: Floats, energies: Floats, number: int) -> Floats:
    """The logarithms (bins + 1,) at the bins' edges after another block of energies.

    An energy counts for both edges of its bin, for the nearer more; where more come up than in an
    even histogram the estimate grows.
    """
    place = np.clip((energies.ravel() - options.lowest) / options.width, 0.0, options.bins)
    left = np.minimum(place.astype(int), options.bins - 1)
    share = np.zeros(options.bins + 1)
    np.add.at(share, left, 1.0 - (place - left))
    np.add.at(share, left + 1, place - left)
    gain = min(1.0, options.gain * number**-options.decay)
    moved = estimate + gain * (share / share.sum() - 1.0 / len(share))
    limit = options.steepest * options.width
    slopes = np.clip(np.diff(moved), -limit, limit)
    return np.concatenate([[0.0], np.cumsum(slopes)])


def judged(draws: Floats, log_weights: Floats) -> dict[str, float]:
    """Share of the large mode in draws (steps, chains) with these weights, and its error.

    The standard error is the jackknife's over chains, which share the histogram. The first half of
    the steps is left out.
    """
    later = slice(len(draws) // 2, None)
    weights = np.exp(log_weights[later] - log_weights[later].max())
    far, all_ = (weights * (draws[later] > MIDDLE)).sum(0), weights.sum(0)
    without = (far.sum() - far) / (all_.sum() - all_)
    number = len(far)
    error = np.sqrt((number - 1) / number * np.square(without - without.mean()).sum())
    return {
        "share": float(far.sum() / all_.sum()),
        "its error": float(error),
        "unweighted": float((draws[later] > MIDDLE).mean()),
    }


def report(
    host: str, options: Options, draws: Floats, log_weights: Floats, seconds: float
) -> dict[str, float]:
    """Print the figures of a run, record them, and return them."""
    figures = judged(draws, log_weights) | {"seconds": seconds}
    recorded("flat-histogram", "flat histogram", host, "two modes", options, figures)
    print(markdown_table([{"host": host, **figures}]))
    return figures


def table(runs: Sequence[Record]) -> str:
    """The page's table: the share of the large mode, which is 0.9."""
    headings = {
        "share": "share of the large mode",
        "its error": "standard error",
        "unweighted": "share of the draws as they are",
    }
    return markdown_table([{"seed": run.seed, **row_of(run, headings)} for run in runs])
