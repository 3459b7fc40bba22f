"""What programs of both packages do alike with their sites."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from benchmarks.posteriordb.methods import Floats
from benchmarks.posteriordb.programs.sites import SiteMap
from ppl_ext.errors import ArgumentError


class OfSites:
    """Part of a program: its positions and coordinates, by its target and its sites."""

    dim: int
    target: Any
    _sites: SiteMap
    unconstrained: Callable[[Mapping[str, Any]], Floats]

    def positions(self, parameters: Mapping[str, Floats]) -> Floats | None:
        """See the protocol."""
        return self.unconstrained(self._sites.sites(dict(parameters)))

    def coordinates(self, parameters: Collection[str]) -> list[int]:
        """See the protocol."""
        layout = self.target.layout
        ranges = (range(self.dim)[layout.slices[name]] for name in layout.names)
        own = zip(layout.names, ranges, strict=True)
        return [i for name, found in own if name in parameters for i in found]


class OfStan(OfSites):
    """Part of a Stan program, whose draws have the parameters under Stan's names."""

    def __init__(self, model: Any, sites: SiteMap) -> None:
        super().__init__(model, sites)  # type: ignore[call-arg]
        self._program = model

    def positions(self, parameters: Mapping[str, Floats]) -> Floats | None:
        """See the protocol."""
        # Our programs have the names of the native ones' sites; others need not.
        values = {**parameters, **self._sites.sites(dict(parameters))}
        count = len(next(iter(values.values())))
        rows = ({name: value[i] for name, value in values.items()} for i in range(count))
        try:
            return np.stack([self._program.density.unconstrain(row) for row in rows])
        except ArgumentError:
            return None
