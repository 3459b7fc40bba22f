"""Tables of the examples with latent variables, of their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.records import LABELS, Record, markdown_table


def _bounds(found: Mapping[str, Any]) -> dict[str, str]:
    return {"ELBO": f"{found['elbo']:.2f}", "bound with 50 draws": f"{found['iwae']:.2f}"}


def fits_table(runs: Sequence[Record]) -> str:
    """Bounds by fit: of the ELBO, of the importance-weighted bound, and of several decoders."""
    fits = {
        "ELBO": "ELBO",
        "IWAE": "IWAE, 5 draws",
        "SVGD": "SVGD, five decoders together",
    }
    rows = []
    for run in runs:
        for name, label in fits.items():
            rows.append(
                {"package": LABELS[run.backend], "fit": label, **_bounds(run.figures[name])}
            )
        single = {"ELBO": "–", "bound with 50 draws": f"{run.figures['SVGD']['single_iwae']:.2f}"}
        rows.append({"package": LABELS[run.backend], "fit": "SVGD, mean of each alone", **single})
    return markdown_table(rows)


def levels_table(runs: Sequence[Record]) -> str:
    """Bounds with one level of latents and with two, and what each level is used for."""
    rows = []
    for run in runs:
        for name in ("one level", "two levels"):
            found = run.figures[name]
            used = found.get("divergence", {})
            rows.append(
                {
                    "package": LABELS[run.backend],
                    "latents": name,
                    **_bounds(found),
                    "divergence of z1": f"{used['z1']:.2f}" if used else "–",
                    "divergence of z2": f"{used['z2']:.2f}" if used else "–",
                }
            )
    return markdown_table(rows)


def improved_table(runs: Sequence[Record]) -> str:
    """Bounds with the encoder and with Gaussians of the chains' moments, and log p(x, z)."""
    labels = {"encoder": "encoder", "SGHMC": "moments of the chains"}
    rows = []
    for run in runs:
        joint = run.figures["log_joint"]
        at = {"encoder": joint[0], "SGHMC": joint[-1]}
        for name, label in labels.items():
            rows.append(
                {
                    "package": LABELS[run.backend],
                    "q(z given x)": label,
                    **_bounds(run.figures["bounds"][name]),
                    "mean of log p(x, z)": f"{at[name]:.2f}",
                }
            )
    return markdown_table(rows)
