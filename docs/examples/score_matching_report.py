"""What the score matching examples share: data, levels of noise, the judgement and the figure."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import count
from benchmarks.datasets import shipped
from benchmarks.records import Record, markdown_table
from docs.examples.energy_based_report import two_moons
from docs.examples.recorded import recorded, row_of

Floats = NDArray[np.float32]

#: Samples that are made, and rows of held-out data that they are compared with.
SAMPLES = 1000
#: Rearrangements of both by which the statistic's Monte Carlo error is known.
REARRANGEMENTS = 200


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the training and of the sampling.

    Noise has `levels` standard deviations, from `widest` to `narrowest`. At each of them chains
    take `langevin_steps` steps of size `step_size`, in units of the noise. With `predicts` each
    level begins with a step of the reversed diffusion from the one before.
    """

    data: str
    steps: int
    batch: int
    hidden: int
    rate: float
    widest: float
    narrowest: float
    levels: int
    langevin_steps: int
    step_size: float
    predicts: bool
    seed: int
    out: Path

    def noise_levels(self) -> list[float]:
        """Standard deviations of the noise, falling."""
        return [float(x) for x in np.geomspace(self.widest, self.narrowest, self.levels)]

    def rows(self, held_out: bool) -> Floats:
        """Data to train on, or held-out data of the same kind."""
        if self.data == "moons":
            rows = SAMPLES if held_out else 4000
            return two_moons(rows, self.seed + held_out)
        found = shipped("digits").x
        order = np.random.default_rng(self.seed).permutation(len(found))
        part = order[1200:] if held_out else order[:1200]
        # Pixels in units of about their standard deviation.
        return ((found[part] - 5.0) / 6.0).astype(np.float32)


def read_options(description: str, argv: Sequence[str] | None) -> Options:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--data", choices=("moons", "digits"), default="moons")
    parser.add_argument(
        "--sampler",
        choices=("langevin", "predictor-corrector"),
        default="langevin",
        help="many Langevin steps at few levels of noise, or one at each of many, after a step of "
        "the reversed diffusion",
    )
    parser.add_argument("--small", action="store_true", help="a run of seconds")
    parser.add_argument("--steps", type=count, help="steps of the optimiser")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    predicts = given.sampler == "predictor-corrector"
    return Options(
        data=given.data,
        steps=given.steps or (1000 if given.small else 4000),
        batch=256,
        hidden=64 if given.data == "moons" else 256,
        rate=5e-3 if given.data == "moons" else 2e-3,
        widest=2.0 if given.data == "moons" else 4.0,
        narrowest=0.1 if given.data == "moons" else 0.2,
        levels=200 if predicts else 10,
        langevin_steps=1 if predicts else (20 if given.small else 50),
        step_size=0.1,
        predicts=predicts,
        seed=given.seed,
        out=given.out,
    )


def energy_distance(x: Floats, y: Floats) -> tuple[float, float]:
    """Energy distance of two samples, and the 99 % point of it if both were of one kind.

    2 E|x - y| - E|x - x'| - E|y - y'| (Szekely and Rizzo 2013), which is zero for equal
    distributions alone; the point is that of random rearrangements of all rows.
    """
    both = np.concatenate([x, y]).astype(np.float64)
    square = (both**2).sum(1)
    distances = np.sqrt(np.maximum(square[:, None] + square - 2.0 * both @ both.T, 0.0))

    def statistic(signs: NDArray[np.float64]) -> float:
        return float(-(signs @ distances @ signs))

    first, second = len(x), len(y)
    signs = np.concatenate([np.full(first, 1.0 / first), np.full(second, -1.0 / second)])
    generator = np.random.default_rng(0)
    others = [statistic(generator.permutation(signs)) for _ in range(REARRANGEMENTS)]
    return statistic(signs), float(np.quantile(others, 0.99))


def report(
    host: str, options: Options, samples: Floats, loss: float, seconds: float
) -> dict[str, float]:
    """Print the figures of a fit, draw it, and return the figures.

    Samples have the noise of the last level, and so have the held-out data to compare them with.
    """
    held_out = options.rows(held_out=True)
    noise = np.random.default_rng(options.seed).normal(size=held_out.shape)
    noisy = (held_out + options.narrowest * noise).astype(np.float32)
    distance, same = energy_distance(samples, noisy)
    pure, _ = energy_distance(
        np.random.default_rng(1).normal(size=samples.shape).astype(np.float32), noisy
    )
    figures = {
        "loss": loss,
        "energy_distance": distance,
        "energy_distance_99": same,
        "energy_distance_of_normal": pure,
        "seconds": seconds,
    }
    method = "predictor-corrector" if options.predicts else "SGLD"
    recorded("score-matching", method, host, options.data, options, figures)
    print(markdown_table([{"host": host, "data": options.data, **figures}]))
    path = options.out / f"score-matching-{options.data}-{host}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    (_draw_moons if options.data == "moons" else _draw_digits)(noisy, samples, path)
    return figures


def table(runs: Sequence[Record]) -> str:
    """The page's table: how far samples are from data."""
    headings = {
        "energy_distance": "energy distance",
        "energy_distance_99": "99 % point",
        "energy_distance_of_normal": "of a standard Normal",
    }
    return markdown_table(
        [{"data": run.model, "sampler": run.method, **row_of(run, headings)} for run in runs]
    )


def _draw_moons(data: Floats, samples: Floats, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.9), layout="constrained")
    for ax, rows, title in zip(axes, (data, samples), ("held-out data", "samples"), strict=True):
        ax.scatter(*rows.T, s=4, alpha=0.5, linewidths=0)
        ax.set(title=title, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _draw_digits(data: Floats, samples: Floats, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.9), layout="constrained")
    for ax, rows, title in zip(axes, (data, samples), ("held-out data", "samples"), strict=True):
        framed = np.pad(rows[:64].reshape(8, 8, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1)))
        tiles = framed.transpose(0, 2, 1, 3).reshape(80, 80)
        ax.imshow(tiles, cmap="gray", vmin=-1.0, vmax=2.0)
        ax.set(title=title, xticks=[], yticks=[])
    figure.savefig(path, dpi=90)
    plt.close(figure)
