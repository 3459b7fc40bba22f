"""Mirrored pairs of draws.

Running averages over them are in :mod:`ppl_ext.score_matching.regression.pairs`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.regression.pairs import Count


def antithetic(theta: Float[Tensor, "K D"], mean: Float[Tensor, " D"]) -> Float[Tensor, "S D"]:
    """Draws (K, D) and their mirror images about the mean, (2 K, D): row k and row K + k pair."""
    return torch.cat([theta, 2.0 * mean - theta])


__all__ = ["Count", "antithetic"]
