"""Bounds of the log likelihood of images from their importance weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def log_mean_exp(values: Any, axis: int) -> Floats:
    """log of the mean of exp along an axis, without overflow."""
    values = np.asarray(values, dtype=np.float64)
    highest = values.max(axis, keepdims=True)
    return np.log(np.exp(values - highest).mean(axis)) + highest.squeeze(axis)


def bounds(log_weights: Any) -> dict[str, float]:
    """Mean over images of the ELBO and of the importance-weighted bound with K draws, in nats.

    Parameters
    ----------
    log_weights : array (K, images)
        log p(x, z) - log q(z | x) at K draws from q(z | x) for each image.

    Returns
    -------
    dict
        `elbo` and `iwae`, and `iwae_error`, the standard error of `iwae` over the images.

    References
    ----------
    Y. Burda, R. Grosse and R. Salakhutdinov, "Importance weighted autoencoders", ICLR 2016,
    equation 8.
    """
    weights = np.asarray(log_weights, dtype=np.float64)
    iwae = log_mean_exp(weights, 0)
    return {
        "elbo": float(weights.mean()),
        "iwae": float(iwae.mean()),
        "iwae_error": float(iwae.std(ddof=1) / len(iwae) ** 0.5),
    }
