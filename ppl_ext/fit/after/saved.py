"""A climb as a tree of names, numbers and arrays for a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ppl_ext.chains.bends import Bend
from ppl_ext.chains.coupling import Coupled
from ppl_ext.chains.given import Given
from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.sampler import Kernel, Sampled, Window
from ppl_ext.chains.symmetry import Exchange, Symmetry
from ppl_ext.fit.problem.views import Names
from ppl_ext.fit.verdict import facts
from ppl_ext.fit.verdict.labels import Orders
from ppl_ext.fit.verdict.verdict import Stage
from ppl_ext.start.start import Mode

#: What a climb is made of, by name.
_PARTS = {
    part.__name__: part
    for part in (
        *(Mode, Bend, Given, Proposal, Chains, Kernel, Window, Sampled, Stage),
        *(facts.Program, facts.Wanted, facts.Modes, facts.Correction, facts.Chained),
        *(facts.Engine, facts.Evidence, Orders, Symmetry, Exchange, Coupled),
    )
}


def as_tree(value: Any) -> Any:
    """Dataclasses as dictionaries of their fields; functions are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        own = {name: as_tree(part) for name, part in pairs if not _is_function(part)}
        return {"part": type(value).__name__, "fields": own}
    if isinstance(value, list | tuple):
        return type(value)(as_tree(each) for each in value)
    return value


def names_as_tree(names: Names) -> dict[str, Any]:
    """Names of axes and labels for a file, which has labels as numbers, dates or texts."""

    def storable(labels: Any) -> np.ndarray:
        found = np.asarray(labels)
        if found.dtype.kind in "biufMmU":
            return found
        import pandas as pd  # which ArviZ needs as well; it takes half a second

        # Timestamps as xarray has them; plain dates, and those with a time zone, become texts.
        dates = pd.Index(labels).to_numpy()
        return dates if dates.dtype.kind in "mM" else found.astype(str)

    return {
        "dims": {name: list(each) for name, each in names.dims.items()},
        "coords": {name: storable(list(each)) for name, each in names.coords.items()},
        "labels": {name: [storable(axis) for axis in each] for name, each in names.labels.items()},
    }


def names_from_tree(tree: Mapping[str, Any]) -> Names:
    """The names of which :func:`names_as_tree` made the tree; nothing where a file has none."""
    coords = {
        # A list of dates by the nanosecond has integers.
        name: tuple(each if each.dtype.kind in "Mm" else each.tolist())
        for name, each in tree.get("coords", {}).items()
    }
    return Names(dict(tree.get("dims", {})), coords, dict(tree.get("labels", {})))


def symmetry_from_tree(rest: Mapping[str, Any] | None) -> Symmetry | None:
    """The exchanges of labels in what a file has beside draws, without the program's maps."""
    tree = None if rest is None else rest.get("symmetry")
    found: Symmetry | None = from_tree(tree, {"constrain": None, "unconstrain": None})
    return found


def _is_function(value: Any) -> bool:
    # The kernel of chains can be called, and has fields that are stored.
    return callable(value) and not is_dataclass(value)


def from_tree(tree: Any, given: Mapping[str, Any]) -> Any:
    """The value that a tree was made of; fields that :func:`as_tree` left out are ``given``."""
    if isinstance(tree, dict):
        part, own = _PARTS[tree["part"]], dict(tree["fields"])
        names = {each.name for each in fields(part)}
        if part is facts.Evidence and own.get("chains") and "flat" not in own:
            # Files of the first versions had these sites with the chains.
            chains = dict(own["chains"]["fields"])
            own["flat"] = chains.pop("flat", ())
            own["chains"] = {**own["chains"], "fields": chains}
        missing = {name: given[name] for name in names - own.keys() if name in given}
        return part(**{name: from_tree(each, given) for name, each in own.items()}, **missing)
    if isinstance(tree, list | tuple):
        return type(tree)(from_tree(each, given) for each in tree)
    return tree
