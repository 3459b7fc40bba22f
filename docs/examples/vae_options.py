"""Options of the examples with latent variables, and the sizes that follow from them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import count


@dataclass(frozen=True)
class Options:
    """What an example is told.

    `images` and `epochs` are those of the training, `held_out` is the number of images that the
    bounds are of, `hidden` and `latent` are widths of the networks' layers, and `num_draws` is
    the number K of draws from the encoder in a bound. `out` is the folder for the results.
    """

    images: int
    epochs: int
    held_out: int
    hidden: int
    latent: int
    num_draws: int
    out: Path
    small: bool


def parse_options(argv: Sequence[str] | None, description: str | None) -> Options:
    """Read the command line; `--small` is a run of seconds, on small images."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=count, help="training images (10000; small: 1000)")
    parser.add_argument("--epochs", type=count, help="of the training (20; small: 60)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--small", action="store_true", help="seconds: 8 x 8 digits, no download")
    found = parser.parse_args(argv)
    small = found.small
    return Options(
        images=found.images or (1000 if small else 10_000),
        epochs=found.epochs or (60 if small else 20),
        held_out=200 if small else 300,
        hidden=32 if small else 128,
        latent=4 if small else 10,
        num_draws=20 if small else 50,
        out=found.out,
        small=small,
    )
