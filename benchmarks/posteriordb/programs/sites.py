"""How the latent sites of a program correspond to the parameters of a reference posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Draws = Mapping[str, np.ndarray]


def _unchanged(draws: Draws) -> dict[str, np.ndarray]:
    return dict(draws)


@dataclass(frozen=True)
class SiteMap:
    """Turns draws of a program's latent sites into a posterior's parameters, and back.

    Both directions are the identity unless given, which is right wherever a program samples the
    parameters themselves under their own names.

    Parameters
    ----------
    to_parameters : callable
        Draws of the latent sites by name, each (draws, ...), to the parameters, each (draws, ...).
    to_sites : callable
        The inverse: parameters to every latent site.

    Notes
    -----
    The two are maps of values. What their Jacobian does to a density is the business of the
    program, which states the density of its sites.
    """

    to_parameters: Callable[[Draws], dict[str, np.ndarray]] = _unchanged
    to_sites: Callable[[Draws], dict[str, np.ndarray]] = _unchanged

    def parameters(self, sites: Draws) -> dict[str, np.ndarray]:
        """Parameters of the reference posterior, from draws of the latent sites."""
        return self.to_parameters(sites)

    def sites(self, parameters: Draws) -> dict[str, np.ndarray]:
        """Latent sites, from draws of the parameters of the reference posterior."""
        return self.to_sites(parameters)


def along(scalars: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Scalar draws (draws,) with trailing axes of length one, to go with vector draws `like`."""
    return np.reshape(scalars, np.shape(scalars) + (1,) * (np.ndim(like) - np.ndim(scalars)))


def non_centred(**vectors: tuple[str, str, str]) -> SiteMap:
    """Map of programs that sample standardised vectors: vector = loc + scale * raw.

    Parameters
    ----------
    **vectors
        By the name of the latent site `raw`, the names of the parameter that replaces it in the
        reference posterior, and of the scalar sites `loc` and `scale`, which are parameters too.
    """

    def to_parameters(sites: Draws) -> dict[str, np.ndarray]:
        values = dict(sites)
        for raw, (vector, loc, scale) in vectors.items():
            standard = values.pop(raw)
            centre, width = along(values[loc], standard), along(values[scale], standard)
            values[vector] = centre + width * standard
        return values

    def to_sites(parameters: Draws) -> dict[str, np.ndarray]:
        values = dict(parameters)
        for raw, (vector, loc, scale) in vectors.items():
            value = values.pop(vector)
            centre, width = along(values[loc], value), along(values[scale], value)
            values[raw] = (value - centre) / width
        return values

    return SiteMap(to_parameters, to_sites)
