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
from dataclasses import dataclass, replace
from typing import Any

import torch
from opt_einsum import get_symbol, shared_intermediates
from pyro.distributions import Unit
from pyro.distributions.util import scale_and_mask
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.packed import pack
from pyro.ops.rings import LogRing
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ppl_ext.target import discrete
from ppl_ext.target.families import is_made_of
from pyro_ext.density.elimination import FEW, without_most
from pyro_ext.density.log_einsum import picking


def is_enumerated(site: Mapping[str, Any]) -> bool:
    """Whether a site is a latent one with finitely many values, which are summed over."""
    if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site):
        return False
    fn = site["fn"]
    return bool(getattr(fn, "has_enumerate_support", False)) and bool(fn.support.is_discrete)


def values_of(fn: Any) -> Tensor:
    """The values of a distribution of finitely many, shape (n,) and its event's."""
    support: Tensor = fn.enumerate_support(expand=False)
    return support.reshape(support.shape[:1] + tuple(fn.event_shape))


class _InParallel(Messenger):
    """Asks for all values of every discrete latent site at once."""

    def _pyro_sample(self, msg: Any) -> None:
        if is_enumerated(msg):
            # Other annotations ask the host for other estimates of the same sum.
            infer = {**(msg["infer"] or {}), "enumerate": "parallel", "expand": False}
            infer.pop("num_samples", None)
            msg["infer"] = infer


class NoneNew(Messenger):
    """Refuses discrete latent sites, whose values would be drawn."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and is_enumerated(msg):
            raise discrete.new_site_error(msg["name"])


@contextmanager
def enumerating(nesting: int) -> Iterator[None]:
    """Context in which discrete latent sites have all their values at once.

    Parameters
    ----------
    nesting : int
        Plates that are open at once, at most; dimensions to their left are free.
    """
    with _Enumerating(first_available_dim=-nesting - 1), _InParallel():
        yield


class _Enumerating(EnumMessenger):
    """Pyro's enumeration, at many draws at once as well."""

    def _pyro_post_sample(self, msg: Any) -> None:
        try:
            super()._pyro_post_sample(msg)
        except RuntimeError:
            # It looks at the shape of ``value.data``, at which ``vmap`` lets nobody look.
            value = msg["value"]
            msg["value"] = torch.empty(value.shape, device="meta")
            try:
                super()._pyro_post_sample(msg)
            finally:
                msg["value"] = value


@dataclass(frozen=True)
class Factor:
    """A site's log probability with a dimension of a discrete latent site.

    Parameters
    ----------
    site : str
    observed : bool
        Whether the site has data; ``pyro.factor`` has none.
    log_prob : tensor
        Masked and scaled, but not by the plates that hold a batch of rows.
    plates : dict of str to float
        Plates around the site, and by how much each multiplies it.
    sizes : dict of str to int
        Rows of those plates.
    dims : dict of int to str
        Names of its dimensions: plates, and numbers of discrete sites.
    own : int, optional
        The dimension of its own values, if it is a discrete latent site.
    """

    site: str
    observed: bool
    log_prob: Tensor
    plates: Mapping[str, float]
    sizes: Mapping[str, int]
    dims: Mapping[int, str]
    own: int | None

    @property
    def numbers(self) -> set[str]:
        """Names of discrete sites among its dimensions."""
        return {name for name in self.dims.values() if name.startswith(_NUMBER)}


#: How names of discrete sites begin, as no plate's does.
_NUMBER = " "


def factor_of(msg: Any, log_prob: Tensor, scaled: bool = True) -> Factor | None:
    """The factor of a site with a discrete site's dimension; None without one.

    Parameters
    ----------
    msg : dict
    log_prob : tensor
    scaled : bool
        With the scales of handlers.
    """
    numbers = {
        dim: f"{_NUMBER}{number}" for dim, number in msg["infer"].get("_dim_to_id", {}).items()
    }
    shape = log_prob.shape
    # A dimension of length one does not depend on the discrete site that it is named after.
    numbers = {dim: name for dim, name in numbers.items() if len(shape) >= -dim and shape[dim] > 1}
    if not numbers:
        return None
    frames = [frame for frame in msg["cond_indep_stack"] if frame.vectorized]
    plates = {frame.name: (frame.full_size or frame.size) / frame.size for frame in frames}
    # Of the scales only those of handlers: those of plates multiply the logarithm of the sum.
    scale = msg["scale"] / math.prod(plates.values()) if scaled else 1.0
    dims = {**{frame.dim: frame.name for frame in frames}, **numbers}
    value = scale_and_mask(log_prob, scale, msg["mask"])
    for dim in range(-value.dim(), 0):
        if dim not in dims and value.shape[dim] > 1:
            # Entries without a plate are one joint observation.
            value = value.sum(dim, keepdim=True)
    sizes = {frame.name: frame.size for frame in frames}
    own = msg["infer"].get("_enumerate_dim") if is_enumerated(msg) else None
    observed = msg["is_observed"] and not is_made_of(msg["fn"], Unit)
    return Factor(msg["name"], observed, value, plates, sizes, dims, own)


def _check_rows(factors: list[Factor]) -> None:
    """See that plates that hold a batch of rows are around a discrete site or touch none of it.

    A discrete site's own factor comes first of those that have its dimension.
    """
    owners: dict[str, Factor] = {}
    for factor in factors:
        batched = {name for name, scale in factor.plates.items() if scale != 1.0}
        for name in factor.numbers:
            owner = owners.setdefault(name, factor)
            # Plates that hold a batch around one of them and not around the other: N / n times the
            # logarithm of a sum is no estimate where rows share what is summed over.
            shared = batched ^ {plate for plate, scale in owner.plates.items() if scale != 1.0}
            if shared:
                raise discrete.shared_rows_error([owner.site], sorted(shared))


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
    scales: dict[str, float] = {}
    for factor in factors:
        scales |= factor.plates
    total: Any = 0.0
    for plates, term in _contracted(factors):
        # Plates that a term does not depend on multiply it by their rows.
        total = total + math.prod(scales[name] for name in plates) * term.sum()
    assert isinstance(total, Tensor)
    return total


def some_values(factors: list[Factor], generator: torch.Generator) -> dict[str, Tensor]:
    """Numbers of some value of each discrete site, by site, of one value in each place."""
    numbers = {}
    for factor in factors:
        if factor.own is not None:
            shape = [1] * max(factor.log_prob.dim(), *(-dim for dim in factor.dims))
            for dim, name in factor.dims.items():
                if name in factor.sizes:
                    shape[dim] = factor.sizes[name]
            size = factor.log_prob.shape[factor.own]
            number = torch.randint(size, shape, generator=generator)
            numbers[factor.site] = number.to(factor.log_prob.device)
    return numbers


def terms_at(factors: list[Factor], numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Log probabilities of sites at one value of each discrete site, with all scales.

    Parameters
    ----------
    factors : list of Factor
    numbers : mapping of str to tensor
        Of :func:`some_values`.
    """
    of_dims = {
        factor.dims[factor.own]: numbers[factor.site]
        for factor in factors
        if factor.own is not None
    }
    found = {}
    for factor in factors:
        log_prob, rows = factor.log_prob, [1] * max(0, *(-dim for dim in factor.dims))
        for dim, name in factor.dims.items():
            if name in factor.sizes:
                rows[dim] = factor.sizes[name]
            elif log_prob.dim() >= -dim and log_prob.shape[dim] > 1:
                number, values = of_dims[name], torch.arange(log_prob.shape[dim])
                discrete.check_places(
                    numbers, factor.site, number.shape, log_prob.shape, grows=True
                )
                chosen = number == values.to(number.device).reshape(-1, *(1,) * (-dim - 1))
                log_prob = torch.where(chosen, log_prob, 0.0).sum(dim, keepdim=True)
        # Plates that a term does not depend on multiply it by their rows.
        log_prob = log_prob.expand(torch.broadcast_shapes(log_prob.shape, tuple(rows)))
        found[factor.site] = math.prod(factor.plates.values()) * log_prob
    return found


def log_likelihood_of_rows(factors: list[Factor]) -> dict[str, discrete.RowTerms]:
    """Log likelihood of what is observed with discrete sites, these summed out.

    Observed sites that share discrete sites have one.

    Parameters
    ----------
    factors : list of Factor
        Without scales.

    Returns
    -------
    dict of str to RowTerms
        By names of observed sites, joined.
    """
    found = {}
    for together in _components(factors):
        names = tuple(dict.fromkeys(each.site for each in together if each.observed))
        if not names:
            continue
        # Locals that are not discrete have densities of their own in the sums.
        others = [factor for factor in together if not factor.observed]
        kept = _shared_plates(together)
        # log p(y | rest) = log sum p(y, z | rest) - log sum p(z | rest), row by row.
        values = _of_rows(together, kept) - _of_rows(others, kept)
        axes = {plate: axis for axis, plate in enumerate(kept)}
        found[discrete.joined_name(names)] = discrete.RowTerms(values, axes, names)
    return found


def posterior_values(
    factors: list[Factor], fns: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], most: bool
) -> dict[str, Tensor]:
    """Values of the discrete sites under their posterior, given everything else.

    Where a gradient of the logarithm of a sum picks one term of every sum, at random by its share
    or the largest, the gradient by a site's log probability is one at the values that are picked.

    Parameters
    ----------
    factors : list of Factor
    fns : mapping of str to distribution
        Of each discrete site.
    shapes : mapping of str to tuple of int
        Shape of each discrete site's value.
    most : bool
        The most probable ones together, in place of a joint draw.
    """
    if not factors:
        return {}

    def total(leaves: tuple[Tensor, ...]) -> Tensor:
        moved = [replace(each, log_prob=leaf) for each, leaf in zip(factors, leaves, strict=True)]
        return torch.stack([term.sum() for _, term in _contracted(moved)]).sum()

    with torch.enable_grad(), picking("largest" if most else "sample"):
        # Each gradient is one at the picked entry of its factor, and zero elsewhere.
        gradients = torch.func.grad(total)(tuple(each.log_prob for each in factors))
    values = {}
    for factor, gradient in zip(factors, gradients, strict=True):
        if factor.own is None:
            continue
        others = [dim for dim, name in factor.dims.items() if name in factor.numbers]
        weight = gradient
        for dim in others:
            if dim != factor.own:
                weight = weight.sum(dim, keepdim=True)
        number = weight.argmax(factor.own)
        values[factor.site] = values_of(fns[factor.site])[number].reshape(shapes[factor.site])
    return values


def _contracted(factors: list[Factor]) -> list[tuple[tuple[str, ...], Tensor]]:
    """The sum over all discrete values of the product of factors, as terms inside plates.

    Each with its plates, and with dimensions of some of these in their order.
    """
    names = dict.fromkeys(name for factor in factors for name in factor.dims.values())
    symbols = {name: get_symbol(number) for number, name in enumerate(names)}
    plain = {symbol: name for name, symbol in symbols.items()}
    summed = {symbol for name, symbol in symbols.items() if name.startswith(_NUMBER)}
    terms = []
    for factor in factors:
        packed = pack(factor.log_prob, {dim: symbols[name] for dim, name in factor.dims.items()})
        plates = frozenset(symbols[name] for name in factor.plates)
        terms.append((packed, packed._pyro_dims, plates))
    if len(summed) > FEW:
        order = {symbol: number for number, symbol in enumerate(symbols.values())}
        sizes = {symbols[name]: size for factor in factors for name, size in factor.sizes.items()}
        terms = without_most(terms, summed, order, sizes)
    tree: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
    for tensor, dims, plates in terms:
        tensor._pyro_dims = dims
        tree.setdefault(plates, []).append(tensor)
    with shared_intermediates() as cache:
        contracted = contract_tensor_tree(tree, summed, ring=_LogRing(cache))
    return [
        (tuple(plain[symbol] for symbol in plates), _with_names(term, plain))
        for plates, terms in contracted.items()
        for term in terms
    ]


def _with_names(term: Tensor, plain: Mapping[str, str]) -> Tensor:
    found = term.clone() if hasattr(term, "_pyro_dims") else term
    found._plates = tuple(plain[symbol] for symbol in term._pyro_dims)  # type: ignore[attr-defined]
    return found


def _of_rows(factors: list[Factor], kept: Mapping[str, int]) -> Tensor:
    """The sum over all discrete values of the product of factors, by row of the plates kept."""
    total = torch.zeros(tuple(kept.values()))
    for _, term in _contracted(factors) if factors else []:
        plates: tuple[str, ...] = term._plates  # type: ignore[attr-defined]
        inside = [name for name in kept if name in plates]
        other = [axis for axis, name in enumerate(plates) if name not in kept]
        reduced = term.sum(other) if other else term
        left = [name for name in plates if name in kept]
        reduced = reduced.permute([left.index(name) for name in inside])
        shape = [kept[name] if name in inside else 1 for name in kept]
        total = total + reduced.reshape(shape)
    return total


def _shared_plates(factors: list[Factor]) -> dict[str, int]:
    """Plates around every discrete site and their rows, leftmost first."""
    owners = [factor for factor in factors if factor.own is not None]
    dims = {name: dim for dim, name in owners[0].dims.items()}
    kept = [name for name in owners[0].plates if all(name in each.plates for each in owners)]
    kept.sort(key=lambda name: dims.get(name, 0))
    return {name: owners[0].sizes[name] for name in kept}


def _components(factors: list[Factor]) -> list[list[Factor]]:
    """Factors that have discrete sites in common, in the order of the trace."""
    groups = discrete.groups_of(factor.numbers for factor in factors)
    return [[factors[place] for place in places] for places in groups]
