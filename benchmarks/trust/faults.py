"""Planted faults: right draws made wrong in unconstrained space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.trust.target import Floats

#: Draws that are checked.
DRAWS = 2_000
#: Share of the draws that a cut tail must hold to be a fault.
LEAST_CUT = 0.01
#: Rounds of the search for two modes, and how far apart they must lie, in units of their widths.
ROUNDS, APART = 20, 4.0

#: Makes a fault of right draws (n, D), or tells by None that there is none to make.
Fault = Callable[[Floats, np.random.Generator], Floats | None]


def _one(z: Floats, generator: np.random.Generator) -> tuple[Floats, int]:
    return z[:DRAWS].copy(), int(generator.integers(z.shape[1]))


def right(z: Floats, generator: np.random.Generator) -> Floats | None:
    """Right draws as they are."""
    return z[:DRAWS]


def shifted(z: Floats, generator: np.random.Generator) -> Floats | None:
    """One coordinate moved by 0.3 standard deviations."""
    found, k = _one(z, generator)
    found[:, k] += generator.choice([-0.3, 0.3]) * z[:, k].std()
    return found


def narrow(z: Floats, generator: np.random.Generator) -> Floats | None:
    """One coordinate drawn in about its mean to 0.7 of its width."""
    return _scaled(z, generator, 0.7)


def wide(z: Floats, generator: np.random.Generator) -> Floats | None:
    """The same drawn out to 1.4 of its width."""
    return _scaled(z, generator, 1.4)


def _scaled(z: Floats, generator: np.random.Generator, ratio: float) -> Floats:
    found, k = _one(z, generator)
    found[:, k] = z[:, k].mean() + ratio * (found[:, k] - z[:, k].mean())
    return found


def cut_tail(z: Floats, generator: np.random.Generator) -> Floats | None:
    """One tail of one coordinate cut at 2 standard deviations, if there is anything to cut."""
    k, side = int(generator.integers(z.shape[1])), generator.choice([-1.0, 1.0])
    white = (z[:, k] - z[:, k].mean()) / z[:, k].std()
    for way in (side, -side):
        kept = way * white < 2.0
        if 1.0 - kept.mean() >= LEAST_CUT:
            return z[kept][:DRAWS]
    return None


def one_mode(z: Floats, generator: np.random.Generator) -> Floats | None:
    """One of two modes, the heavier one, where they lie apart."""
    white = (z - z.mean(0)) / z.std(0)
    # From the ends of the longest axis.
    axis = np.linalg.svd(white[:1_000], full_matrices=False)[2][0]
    centers = np.stack([white[(white @ axis).argmin()], white[(white @ axis).argmax()]])
    for _ in range(ROUNDS):
        first = np.square(white - centers[0]).sum(1) < np.square(white - centers[1]).sum(1)
        if not 0.02 < first.mean() < 0.98:
            return None
        centers = np.stack([white[first].mean(0), white[~first].mean(0)])
    between = centers[1] - centers[0]
    along = white @ between / np.linalg.norm(between)
    width = max(along[first].std(), along[~first].std())
    if np.linalg.norm(between) < APART * width:
        return None
    kept = first if first.mean() > 0.5 else ~first
    return np.resize(z[kept], (DRAWS, z.shape[1]))


def mean_field(z: Floats, generator: np.random.Generator) -> Floats | None:
    """Independent Normals with the conditional widths of a correlated posterior."""
    if z.shape[1] == 1:
        return None
    widths = 1.0 / np.sqrt(np.diag(np.linalg.pinv(np.cov(z.T))))
    return z.mean(0) + np.minimum(widths, z.std(0)) * generator.normal(size=(DRAWS, z.shape[1]))


#: Faults by name, and whether they are faults whatever the posterior is; else the judge says.
FAULTS: dict[str, tuple[Fault, bool]] = {
    "right": (right, True),
    "shifted 0.3 sd": (shifted, False),
    "sd ratio 0.7": (narrow, False),
    "sd ratio 1.4": (wide, False),
    "tail cut at 2 sd": (cut_tail, True),
    "one mode": (one_mode, False),
    "mean field": (mean_field, False),
}
