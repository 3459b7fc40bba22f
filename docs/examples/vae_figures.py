"""Figures of the examples with latent variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[Any]


def show_rows(ax: Axes, pictures: dict[str, Array], side: int) -> None:
    """Rows of images (n, pixels) of values from 0 to 1, each row under its name."""
    rows = []
    for images in pictures.values():
        squares = np.pad(images.reshape(-1, side, side), ((0, 0), (1, 1), (1, 1)))
        rows.append(np.concatenate(list(squares), 1))
    ax.imshow(np.concatenate(rows), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
    ax.set_yticks((np.arange(len(rows)) + 0.5) * (side + 2), list(pictures))
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def draw_vae(
    pictures: dict[str, Array], results: dict[str, Any], side: int, num_draws: int, path: Path
) -> None:
    """Bounds of held-out images by epoch beside reconstructions and samples."""
    figure, (left, right) = _panels(1.6)
    for name, colour in (("ELBO", "C0"), ("IWAE", "C1")):
        history = results[name]["history"][1:]
        epochs = np.arange(1, len(history) + 1)
        for bound, style in (("iwae", "-"), ("elbo", "--")):
            label = f"{name}: {'ELBO' if bound == 'elbo' else f'{num_draws} draws'}"
            left.plot(epochs, [each[bound] for each in history], colour + style, label=label)
    left.axhline(
        results["SVGD"]["iwae"], color="C2", linestyle=":", label=f"SVGD: {num_draws} draws"
    )
    left.set(xlabel="epoch", ylabel="nats an image", title="bounds of held-out images")
    left.legend()
    show_rows(right, pictures, side)
    _save(figure, path)


def draw_hierarchical(
    pictures: dict[str, Array], results: dict[str, Any], side: int, num_draws: int, path: Path
) -> None:
    """Bounds of held-out images by epoch for one and two levels, and images from either level."""
    figure, (left, right) = _panels(1.4)
    for name, colour in (("one level", "C0"), ("two levels", "C1")):
        history = results[name]["history"][1:]
        epochs = np.arange(1, len(history) + 1)
        left.plot(epochs, [each["elbo"] for each in history], f"{colour}--", label=f"{name}: ELBO")
        iwae = [each["iwae"] for each in history]
        left.plot(epochs, iwae, colour, label=f"{name}: {num_draws} draws")
    left.set(xlabel="epoch", ylabel="nats an image", title="bounds of held-out images")
    left.legend()
    show_rows(right, pictures, side)
    _save(figure, path)


def draw_improved(
    pictures: dict[str, Array], results: dict[str, Any], side: int, num_draws: int, path: Path
) -> None:
    """log p(x, z) along the chains, bounds by the encoder and by the chains' Gaussians, images."""
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, 3.6), layout="constrained", gridspec_kw={"width_ratios": [1, 0.7, 1.7]}
    )
    for key, label in (("log_likelihood", "log p(x | z)"), ("log_joint", "log p(x, z)")):
        left.plot(results[key], label=label)
    left.set(xlabel="steps of SGHMC", ylabel="nats an image", title="from the encoder's draws")
    left.legend()
    names, places = list(results["bounds"]), np.arange(2)
    for shift, (key, label) in zip(
        (-0.2, 0.2), (("elbo", "ELBO"), ("iwae", f"{num_draws} draws")), strict=True
    ):
        heights = [results["bounds"][name][key] for name in names]
        middle.plot(places + shift, heights, "o", label=label)
        for place, height in zip(places + shift, heights, strict=True):
            middle.annotate(
                f"{height:.1f}", (place, height), (0, 6), textcoords="offset points", ha="center"
            )
    middle.set(xlim=(-0.6, 1.6), title="bounds of held-out images")
    middle.margins(y=0.2)
    middle.set_xticks(places, [f"q: {name}" for name in names])
    middle.legend(loc="lower right")
    show_rows(right, pictures, side)
    right.set_title("images whose ELBO gains most")
    _save(figure, path)


def _panels(ratio: float) -> tuple[Figure, Any]:
    return plt.subplots(
        1, 2, figsize=(11, 4), layout="constrained", gridspec_kw={"width_ratios": [1, ratio]}
    )


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
