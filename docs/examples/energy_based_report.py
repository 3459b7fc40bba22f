"""What the energy-based examples share: the data, the judgement of a fit, and the figure."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import count
from benchmarks.records import Record, markdown_table
from docs.examples.recorded import recorded, row_of

Floats = NDArray[np.float32]

#: Standard deviation of the Normal base that the energy tilts; wide beside the data.
BASE_SCALE = 2.0
#: Half width of the square in which noise is drawn and the figure is.
HALF_WIDTH = 3.0
#: A sample that is closer than this to a row of the held-out data counts as near.
NEAR = 0.2


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the training.

    `chains` samples are moved by `langevin_steps` steps of size `step_size` before each of the
    `steps` of the optimiser. `start` says where these begin: where the last ones ended
    ("persistent"), at the base distribution ("noise") or at the data ("data").
    """

    start: str
    steps: int
    chains: int
    langevin_steps: int
    step_size: float
    rate: float
    generation_steps: int
    seed: int
    out: Path


def read_options(description: str, argv: Sequence[str] | None) -> Options:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--small", action="store_true", help="a run of seconds")
    parser.add_argument("--steps", type=count, help="steps of the optimiser")
    parser.add_argument("--start", choices=("persistent", "noise", "data"), default="persistent")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    small = given.small
    return Options(
        start=given.start,
        steps=given.steps or (250 if small else 2000),
        chains=64 if small else 256,
        langevin_steps=10 if small else 20,
        step_size=0.005,
        rate=5e-3 if small else 1e-2,
        generation_steps=300 if small else 2000,
        seed=given.seed,
        out=given.out,
    )


def two_moons(rows: int, seed: int) -> Floats:
    """Rows (n, 2) on two half circles with noise, with mean 0 and standard deviation near 1."""
    from sklearn.datasets import make_moons

    x, _ = make_moons(rows, noise=0.08, random_state=seed)
    return ((x - [0.5, 0.25]) / [0.87, 0.5]).astype(np.float32)


def uniform_noise(rows: int, seed: int) -> Floats:
    """Rows (n, 2) anywhere in the square."""
    generator = np.random.default_rng(seed)
    return generator.uniform(-HALF_WIDTH, HALF_WIDTH, (rows, 2)).astype(np.float32)


def base_energy(x: Floats) -> Floats:
    """Minus the log density of the Normal base, up to a constant."""
    return 0.5 * np.square(x / BASE_SCALE).sum(-1)


def nearest(x: Floats, others: Floats) -> Floats:
    """Distance of each row of `x` to the nearest of the others."""
    return np.sqrt(np.square(x[:, None] - others[None]).sum(-1).min(1))


def report(
    host: str,
    options: Options,
    network_energy: Callable[[Floats], Floats],
    samples: Floats,
    seconds: float,
) -> dict[str, float]:
    """Print the figures of a fit, draw it, and return the figures.

    The energies are those of the whole density, network and base, less that of the data.
    """

    def energy(x: Floats) -> Floats:
        return network_energy(x) + base_energy(x)

    held_out = two_moons(1000, seed=options.seed + 1)
    noise = uniform_noise(1000, options.seed)
    distance = nearest(samples, held_out)
    figures = {
        "energy_gap": float(energy(noise).mean() - energy(held_out).mean()),
        "near_share": float((distance < NEAR).mean()),
        "noise_near_share": float((nearest(noise, held_out) < NEAR).mean()),
        "upper_share": float((samples[:, 1] > 0.0).mean()),
        "upper_share_data": float((held_out[:, 1] > 0.0).mean()),
        "seconds": seconds,
    }
    recorded("energy-based-model", "SGLD", host, "two moons", options, figures)
    print(markdown_table([{"host": host, **figures}]))
    _draw(energy, held_out, samples, options.out / f"energy-based-model-{host}.png")
    return figures


def table(runs: Sequence[Record]) -> str:
    """The page's table: energies and samples against held-out data."""
    headings = {
        "energy_gap": "energy of noise less that of data, nats",
        "near_share": "chains near data",
        "noise_near_share": "noise near data",
    }
    return markdown_table([row_of(run, headings) for run in runs])


def _draw(energy: Callable[[Floats], Floats], data: Floats, samples: Floats, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    side = np.linspace(-HALF_WIDTH, HALF_WIDTH, 120, dtype=np.float32)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    height = energy(grid).reshape(len(side), -1)
    height = height - height.min()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
    filled = axes[1].contourf(
        side, side, np.minimum(height, 12.0), np.linspace(0, 12, 25), cmap="viridis_r"
    )
    figure.colorbar(filled, ax=axes[1], label="energy above its least value, cut at 12")
    for ax, rows, title in ((axes[0], data, "held-out data"), (axes[2], samples, "samples")):
        ax.scatter(*rows[:1000].T, s=4, alpha=0.5, linewidths=0)
        ax.set_title(title)
    axes[1].set_title("learnt energy")
    for ax in axes:
        ax.set(xlim=(-HALF_WIDTH, HALF_WIDTH), ylim=(-HALF_WIDTH, HALF_WIDTH), aspect="equal")
    figure.savefig(path, dpi=90)
    plt.close(figure)
