"""Sizes of the forecaster, which both backends share."""

from __future__ import annotations

from dataclasses import dataclass

#: Ridge of the least-squares fit of the local dynamics, for latents of size one.
RIDGE = 1.0


@dataclass(frozen=True)
class Sizes:
    """Units of the networks.

    ``hidden`` and ``latent`` are of the time-invariant branch, ``local_hidden`` and
    ``local_latent`` of the time-variant one.
    """

    hidden: int
    latent: int
    local_hidden: int
    local_latent: int


REDUCED = Sizes(hidden=96, latent=48, local_hidden=32, local_latent=16)
FULL = Sizes(hidden=256, latent=128, local_hidden=64, local_latent=32)
#: For normalizing flows, which suffer from high dimension: below 5,000 weights (M. Kim, 5.5).
SMALL = Sizes(hidden=12, latent=6, local_hidden=8, local_latent=4)
