"""Black and white digits for the examples with latent variables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Digits:
    """Binary images, float32 of 0 and 1, one image a row: `train` (n, pixels), `test` (m, pixels).

    Images are squares of `side` pixels.
    """

    train: Floats
    test: Floats
    side: int

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return self.side**2

    def batches(self, generator: np.random.Generator, size: int) -> Floats:
        """The training images in a new order, (batches, size, pixels); a ragged rest is left out.

        Raises
        ------
        ValueError
            There are not enough images for a batch.
        """
        number = len(self.train) // size
        if number == 0:
            raise ValueError(
                f"Expected at least {size} training images for a batch, found {len(self.train)}: "
                "raise --images."
            )
        order = generator.permutation(len(self.train))[: number * size]
        return self.train[order].reshape(number, size, -1)


def load_digits(images: int, held_out: int, *, small: bool, seed: int = 0) -> Digits:
    """So many training images and held-out images, the same for the same seed.

    A pixel is on with the probability of its intensity, drawn once. The images are MNIST's, or,
    with `small`, the 8 x 8 digits that scikit-learn ships, which need no download.

    Raises
    ------
    ValueError
        There are not so many images.
    """
    generator = np.random.default_rng(seed)
    if small:
        table = datasets.shipped("digits")
        order = generator.permutation(len(table.x))
        pictures = table.x[order] / 16.0
        train, test = pictures[held_out:], pictures[:held_out]
    else:
        found = datasets.images("mnist")
        train = found.x_train[generator.permutation(len(found.x_train))[:images]] / 255.0
        test = found.x_test[generator.permutation(len(found.x_test))[:held_out]] / 255.0
    if len(train) < images or len(test) < held_out:
        raise ValueError(
            f"Expected at most {len(train)} training images and {len(test)} held-out ones, found "
            f"{images} and {held_out}: lower --images."
        )
    train, test = train[:images].reshape(images, -1), test.reshape(held_out, -1)
    side = round(train.shape[1] ** 0.5)
    return Digits(_switched(generator, train), _switched(generator, test), side)


def _switched(generator: np.random.Generator, intensities: NDArray[np.float64]) -> Floats:
    """Pixels that are on with the probability of their intensity."""
    return (generator.uniform(size=intensities.shape) < intensities).astype(np.float32)
