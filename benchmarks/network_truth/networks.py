"""The networks, their data, and what differs between the two hosts: modules."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import Split
from benchmarks.hosts import host_of
from benchmarks.trust.problems import Program

#: What the last layer is: the mean of a Normal whose scale is a latent site, mean and logarithm of
#: the scale, or logits.
Head = Literal["noise", "spread", "classes"]
#: Location and scale of the logarithm of a learnt noise, and where that of a spread is centred.
NOISE_PRIOR = (-1.0, 1.0)
#: Side of the convolution's windows, of those that are averaged after it, and of the images.
WINDOW, POOL, SIDE = 3, 2, 8
#: Rows that tables are judged by, at most.
HELD_OUT = 100


@dataclass(frozen=True)
class Network:
    """A network as a program, with its rows.

    Attributes
    ----------
    about : str
        Its rows.
    rows : callable
        Training and held-out rows.
    widths : tuple of int
        Inputs, hidden tanh units, outputs; after a convolution the inputs are what it leaves.
    head : {"noise", "spread", "classes"}
    channels : int
        Of a convolution before the layers, of 3 x 3 windows of 8 x 8 images with ReLU units and
        means of 2 x 2 of them; 0 for none.
    """

    about: str
    rows: Callable[[], Split]
    widths: tuple[int, ...]
    head: Head
    channels: int = 0

    @property
    def dimension(self) -> int:
        """Number of its latents."""
        layers = sum((inputs + 1) * units for inputs, units in pairwise(self.widths))
        convolution = (WINDOW**2 + 1) * self.channels
        return layers + convolution + (self.head == "noise")

    @property
    def described(self) -> str:
        """Its units and its last layer in words."""
        convolution = f"convolution of {self.channels}, " if self.channels else ""
        heads = {"noise": "learnt noise", "spread": "learnt spread", "classes": "classes"}
        return f"{convolution}{'-'.join(map(str, self.widths))}, {heads[self.head]}"


def of_convolution(channels: int, *units: int) -> tuple[int, ...]:
    """Widths of the layers after a convolution."""
    return channels * ((SIDE - WINDOW + 1) // POOL) ** 2, *units


def curve(number: int, spread: bool, seed: int) -> Split:
    """A wave with a gap between its rows, whose noise grows along it where ``spread`` says so."""
    generator = np.random.default_rng(seed)
    x = np.concatenate([generator.uniform(-2.0, -0.4, number), generator.uniform(0.6, 2.0, number)])
    held = np.linspace(-2.2, 2.2, 45)

    def response(x: Any) -> Any:
        noise = 0.05 + 0.15 * (x + 2.5) if spread else 0.2
        return np.sin(2.0 * x) + 0.3 * x + noise * generator.normal(size=len(x))

    return Split(x[:, None], response(x), held[:, None], response(held))


def moons(number: int, seed: int) -> Split:
    """Two half circles that reach into each other, with noise."""
    generator = np.random.default_rng(seed)

    def rows(number: int) -> tuple[Any, Any]:
        angle, label = generator.uniform(0.0, np.pi, number), generator.integers(0, 2, number)
        upper = np.stack([np.cos(angle) - 0.5, np.sin(angle) - 0.25], 1)
        x = np.where(label[:, None] == 0, upper, -upper) + 0.25 * generator.normal(size=(number, 2))
        return x, label

    return Split(*rows(number), *rows(60))


def shipped(name: str, share: float = 0.2) -> Split:
    """Rows that scikit-learn ships, standardised; ``share`` of them are held out."""
    data = datasets.shipped(name)
    return _standardised(data, data.random_split(0, share))


def external(name: str) -> Split:
    """Rows of the folder that PPL_EXT_DATA names, standardised."""
    data = datasets.external(name)
    return _standardised(data, data.split(0) if data.splits else data.random_split(0))


def _standardised(data: datasets.Dataset, split: Split) -> Split:
    scaled = split.standardised(response=data.task == "regression")
    held_out = {"x_test": scaled.x_test[:HELD_OUT], "y_test": scaled.y_test[:HELD_OUT]}
    return dataclasses.replace(scaled, **held_out)


def digits(train: int, held: int, *, images: bool) -> Split:
    """Images of digits, 8 x 8 pixels from 0 to 1."""
    split = datasets.shipped("digits").random_split(0)
    shape = (-1, SIDE, SIDE) if images else (-1, SIDE**2)

    def pixels(x: Any) -> Any:
        return x.reshape(shape) / 16.0

    return Split(
        pixels(split.x_train[:train]),
        split.y_train[:train],
        pixels(split.x_test[:held]),
        split.y_test[:held],
    )


#: The smallest first.
NETWORKS: dict[str, Network] = {
    "curve": Network("a wave, 60 rows", partial(curve, 30, False, 0), (1, 33, 1), "noise"),
    "moons": Network("two half circles, 100 rows", partial(moons, 100, 1), (2, 25, 1), "classes"),
    "curve-spread": Network(
        "a wave with growing noise, 120 rows", partial(curve, 60, True, 2), (1, 30, 2), "spread"
    ),
    "curve-deep": Network("a wave, 60 rows", partial(curve, 30, False, 0), (1, 10, 10, 1), "noise"),
    "moons-deep": Network(
        "two half circles, 100 rows", partial(moons, 100, 1), (2, 10, 10, 1), "classes"
    ),
    "wine": Network("wine, 142 rows", partial(shipped, "wine"), (13, 20, 3), "classes"),
    "yacht": Network("yacht, 277 rows", partial(external, "yacht"), (6, 16, 16, 1), "noise"),
    "digits-convolution": Network(
        "digits, 300 rows",
        partial(digits, 300, 50, images=True),
        of_convolution(4, 10),
        "classes",
        channels=4,
    ),
    "breast-cancer": Network(
        "breast cancer, 455 rows", partial(shipped, "breast_cancer"), (30, 16, 1), "classes"
    ),
    "diabetes": Network(
        "diabetes, 353 rows", partial(shipped, "diabetes", 89 / 442), (10, 50, 1), "noise"
    ),
    "diabetes-spread": Network(
        "diabetes, 353 rows", partial(shipped, "diabetes", 89 / 442), (10, 20, 20, 2), "spread"
    ),
    "digits": Network(
        "digits, 600 rows", partial(digits, 600, 50, images=False), (64, 32, 10), "classes"
    ),
    "wine-red": Network(
        "wine red, 1,439 rows", partial(external, "wine_red"), (11, 64, 64, 1), "noise"
    ),
}


@dataclass(frozen=True)
class Bound:
    """A network in one host.

    Attributes
    ----------
    program : Program
        The model with the training rows.
    held_out : tuple
        The model's arguments on the rows to judge by.
    """

    program: Program
    held_out: tuple[Any, Any]


def bound(network: Network, backend: str, batch: int | None = None) -> Bound:
    """A network in a host, in its default precision, by minibatches of so many rows or by all.

    Raises
    ------
    MissingDataError
        Its rows are not on this machine.
    """
    module = importlib.import_module(f"benchmarks.network_truth.{backend}_programs")
    array, rows = host_of(backend).array, network.rows()
    device = getattr(module, "DEVICE", None)
    # The Bernoulli distribution of both hosts takes numbers as the Normal does.
    kind = np.int64 if network.head == "classes" and network.widths[-1] > 1 else np.float64

    def given(x: Any, y: Any) -> tuple[Any, Any]:
        both = array(x), array(y.astype(kind))
        return both if device is None else (both[0].to(device), both[1].to(device))

    model = module.program(network, batch)
    return Bound(Program(model, given(rows.x_train, rows.y_train)), given(rows.x_test, rows.y_test))
