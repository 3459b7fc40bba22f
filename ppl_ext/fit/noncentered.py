"""Which sites of a program may be non-centred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """Location and scale of a site's distribution in one run, and names of its other parameters."""

    location: tuple[float, ...]
    scale: tuple[float, ...]
    other: tuple[str, ...] = ()


def varying(first: Mapping[str, Family], second: Mapping[str, Family]) -> tuple[str, ...]:
    """Sites whose scale differs between two runs: it depends on other latent sites."""
    return tuple(
        name
        for name, family in first.items()
        if name in second and family.scale != second[name].scale
    )
