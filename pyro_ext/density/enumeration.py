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

from ppl_ext.errors import ModelCheckError


def is_enumerated(site: Mapping[str, Any]) -> bool:
    """Whether a site is a latent one with finitely many values, which are summed over."""
    if site["is_observed"] or site_is_subsample(site):
        return False
    fn = site["fn"]
    return bool(getattr(fn, "has_enumerate_support", False)) and bool(fn.support.is_discrete)


class _InParallel(Messenger):
    """Asks for all values of every discrete latent site at once."""

    def _pyro_sample(self, msg: Any) -> None:
        if is_enumerated(msg):
            msg["infer"] = {**(msg["infer"] or {}), "enumerate": "parallel"}


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
    return Factor(msg["name"], scaled, plates, {**names, **numbers})


class _LogRing(LogRing):
    _backend = "pyro_ext.density.log_einsum"


def log_marginal(factors: list[Factor]) -> Tensor:
    """Log of the sum, over all values of discrete sites, of their factors.

    Raises
    ------
    ModelCheckError
        A plate holds a batch of rows that share a discrete site.
    """
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
    batched = {symbol for symbol, scale in scales.items() if scale != 1.0}
    left = {frozenset(batched & plates) for plates in tree}
    if {frozenset(batched & plates) for plates in contracted} != left:
        raise ModelCheckError(
            "A discrete latent site is shared by all rows of a subsampled plate "
            f"({', '.join(sorted({f.site for f in factors}))} together), of which a batch cannot "
            "tell its values. Expected a site inside that plate, or all rows: leave "
            "subsample_size out."
        )
    total: Any = 0.0
    for plates, terms in contracted.items():
        scale = math.prod(scales[symbol] for symbol in plates)
        for term in terms:
            # Plates that a term does not depend on multiply it by their rows.
            total = total + scale * term.sum()
    assert isinstance(total, Tensor)
    return total
