"""Discrete latent sites summed out, by Pyro's own enumeration (``poutine.enum``, tensor variable
elimination).

A site with finitely many values gets a dimension of its own, which holds all of them, and factors
that have such a dimension are multiplied and summed by ``pyro.ops.contract``. What is here besides
is the scale of minibatches: it multiplies the logarithm of the sum over a row's values, not the
terms in it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opt_einsum import get_symbol, shared_intermediates
from pyro.distributions.util import scale_and_mask
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.packed import pack
from pyro.ops.rings import LogRing
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ppl_ext.discrete import shared_rows_error


def is_enumerated(site: Mapping[str, Any]) -> bool:
    """Whether a site is a latent one with finitely many values, which are summed over."""
    if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site):
        return False
    fn = site["fn"]
    return bool(getattr(fn, "has_enumerate_support", False)) and bool(fn.support.is_discrete)


class _InParallel(Messenger):
    """Asks for all values of every discrete latent site at once."""

    def _pyro_sample(self, msg: Any) -> None:
        if is_enumerated(msg):
            # Other annotations ask the host for other estimates of the same sum.
            infer = {**(msg["infer"] or {}), "enumerate": "parallel", "expand": False}
            infer.pop("num_samples", None)
            msg["infer"] = infer


@contextmanager
def enumerating(nesting: int) -> Iterator[None]:
    """Context in which discrete latent sites have all their values at once.

    Parameters
    ----------
    nesting : int
        Plates that are open at once, at most; dimensions to their left are free.
    """
    with EnumMessenger(first_available_dim=-nesting - 1), _InParallel():
        yield


@dataclass(frozen=True)
class Factor:
    """A site's log probability with a dimension of a discrete latent site.

    Parameters
    ----------
    site : str
    log_prob : tensor
        Masked and scaled, but not by the plates that hold a batch of rows.
    plates : dict of str to float
        Plates around the site, and by how much each multiplies it.
    dims : dict of int to str
        Names of its dimensions: plates, and numbers of discrete sites.
    """

    site: str
    log_prob: Tensor
    plates: Mapping[str, float]
    dims: Mapping[int, str]


def factor_of(msg: Any, log_prob: Tensor) -> Factor | None:
    """The factor of a site with a discrete site's dimension; None without one."""
    numbers = {dim: f" {number}" for dim, number in msg["infer"].get("_dim_to_id", {}).items()}
    shape = log_prob.shape
    if not any(len(shape) >= -dim and shape[dim] > 1 for dim in numbers):
        return None
    frames = [frame for frame in msg["cond_indep_stack"] if frame.vectorized]
    plates = {frame.name: (frame.full_size or frame.size) / frame.size for frame in frames}
    scale = msg["scale"] / math.prod(plates.values())
    names = {frame.dim: frame.name for frame in frames}
    scaled = scale_and_mask(log_prob, scale, msg["mask"])
    dims = {**names, **numbers}
    for dim in range(-scaled.dim(), 0):
        if dim not in dims and scaled.shape[dim] > 1:
            # Entries without a plate are one joint observation.
            scaled = scaled.sum(dim, keepdim=True)
    return Factor(msg["name"], scaled, plates, dims)


def _check_rows(factors: list[Factor]) -> None:
    """See that plates that hold a batch of rows are around a discrete site or touch none of it.

    A discrete site's own factor comes first of those that have its dimension.
    """
    owners: dict[str, Factor] = {}
    for factor in factors:
        batched = {name for name, scale in factor.plates.items() if scale != 1.0}
        for name in factor.dims.values():
            if not name.startswith(" "):
                continue
            owner = owners.setdefault(name, factor)
            shared = batched ^ {plate for plate, scale in owner.plates.items() if scale != 1.0}
            if shared:
                raise shared_rows_error([owner.site], sorted(shared))


class _LogRing(LogRing):
    _backend = "pyro_ext.density.log_einsum"


def log_marginal(factors: list[Factor]) -> Tensor:
    """Log of the sum, over all values of discrete sites, of their factors.

    Raises
    ------
    ModelCheckError
        A plate holds a batch of rows that share a discrete site.
    """
    _check_rows(factors)
    names = dict.fromkeys(name for factor in factors for name in factor.dims.values())
    symbols = {name: get_symbol(number) for number, name in enumerate(names)}
    summed = {symbol for name, symbol in symbols.items() if name.startswith(" ")}
    scales: dict[str, float] = {}
    tree: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
    for factor in factors:
        scales |= {symbols[name]: scale for name, scale in factor.plates.items()}
        plates = frozenset(symbols[name] for name in factor.plates)
        packed = pack(factor.log_prob, {dim: symbols[name] for dim, name in factor.dims.items()})
        tree.setdefault(plates, []).append(packed)
    with shared_intermediates() as cache:
        contracted = contract_tensor_tree(tree, summed, ring=_LogRing(cache))
    total: Any = 0.0
    for plates, terms in contracted.items():
        scale = math.prod(scales[symbol] for symbol in plates)
        for term in terms:
            # Plates that a term does not depend on multiply it by their rows.
            total = total + scale * term.sum()
    assert isinstance(total, Tensor)
    return total
