"""What the autoencoders trained with improved draws share: settings, the table and the figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks import records
from benchmarks.records import LABELS, Record, markdown_table
from docs.examples.recorded import settings_of
from docs.examples.vae_data import Digits, load_digits
from docs.examples.vae_options import parse_options

PLAIN = "plain"
#: Ways to train by name, with how many times the epochs each is given.
WAYS = {PLAIN: 5, "improved": 1, "distilled": 1}
#: Steps of SGHMC from each draw of the encoder.
MOVES = 20
#: Encoders by name: hidden units of the decoder for each of theirs.
ENCODERS = {"wide": 1, "narrow": 16}


def initial(
    shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, Float[np.ndarray, " ..."]]:
    """Weights of both networks before training."""
    generator = np.random.default_rng(seed)
    return {
        name: (
            generator.normal(size=shape) * shape[0] ** -0.5 if len(shape) == 2 else np.zeros(shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def run(
    host: str,
    autoencoder: Callable[[int, int, int, int], Any],
    train: Callable[[str, Any, Digits, int, int], tuple[Any, list[dict[str, float]]]],
    judged: Callable[[Any, Any, Any, int], dict[str, dict[str, float]]],
    as_array: Callable[[Any], Any],
    argv: Sequence[str] | None,
    description: str | None,
) -> int:
    """Train in all ways, and write the records, the table and the figure.

    Parameters
    ----------
    host : str
    autoencoder : callable
        Makes one of pixels, hidden units, latents, and the encoder's hidden units.
    train, judged : callable
        Of an example.
    as_array : callable
        Makes an array of the host of one of NumPy.
    argv, description
        The command line, and what `--help` says.
    """
    options = parse_options(argv, description)
    digits = load_digits(options.images, options.held_out, small=options.small)
    x, path = as_array(digits.test), options.out / "distilled-vae.jsonl"
    path.unlink(missing_ok=True)
    for encoder, share in ENCODERS.items():
        vae = autoencoder(digits.pixels, options.hidden, options.latent, options.hidden // share)
        for way, times in WAYS.items():
            settings = {"encoder": encoder, **settings_of(options), "moves": MOVES}
            record = Record("distilled-vae", way, host, settings=settings)
            with records.recorded_run(path, record):
                epochs = times * options.epochs
                weights, history = train(way, vae, digits, epochs, options.num_draws)
                record.figures["history"] = history
                record.figures |= judged(vae, weights, x, options.num_draws)
    runs = records.read(path)
    print(table(runs))
    draw(runs, options.out / "distilled_vae.png")
    return 0


def _equal(run: Record, other: Record) -> tuple[int, dict[str, float]]:
    """Where a run stood after the epochs that another had: the number and the figures."""
    number = len(other.figures["history"])
    return number, run.figures["history"][number - 1]


def table(runs: Sequence[Record]) -> str:
    """Bounds of held-out images by way to train and encoder."""
    rows = []
    for run in runs:
        history = run.figures["history"]
        rows.append(
            {
                "package": LABELS[run.backend],
                "encoder": run.settings["encoder"],
                "training": run.method,
                "epochs": len(history),
                "seconds": f"{history[-1]['seconds']:.1f}",
                "bound with the encoder": _bound(run.figures["encoder"]),
                "bound with chains": _bound(run.figures["chains"]),
            }
        )
        if run.method == PLAIN:
            fewest = min(
                (other for other in runs if _beside(run, other)),
                key=lambda other: len(other.figures["history"]),
            )
            number, figures = _equal(run, fewest)
            rows.insert(
                len(rows) - 1,
                {
                    **rows[-1],
                    "epochs": number,
                    "seconds": f"{figures['seconds']:.1f}",
                    "bound with the encoder": _bound(figures),
                    "bound with chains": "–",
                },
            )
    return markdown_table(rows)


def _beside(run: Record, other: Record) -> bool:
    return (run.backend, run.settings["encoder"]) == (other.backend, other.settings["encoder"])


def _bound(figures: dict[str, float]) -> str:
    return f"{figures['iwae']:.2f} ± {figures['iwae_error']:.2f}"


def draw(runs: Sequence[Record], path: Path) -> None:
    """Bounds of held-out images with the encoder, over seconds of training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((run.backend, run.settings["encoder"]) for run in runs))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels) + 1, 3.6), layout="constrained", squeeze=False
    )
    for axis, (backend, encoder) in zip(axes[0], panels, strict=True):
        lowest: list[Any] = []
        for number, way in enumerate(WAYS):
            for run in runs:
                if (run.method, run.backend, run.settings["encoder"]) == (way, backend, encoder):
                    history = run.figures["history"]
                    heights = [each["iwae"] for each in history]
                    lowest.append(heights[min(len(heights) // 5, 3)])
                    axis.plot(
                        [each["seconds"] for each in history], heights, f"C{number}", label=way
                    )
        axis.set_ylim(bottom=min(lowest))
        axis.set(xlabel="seconds", title=f"{LABELS[backend]}, {encoder} encoder")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("bound, nats an image")
    axes[0][-1].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
