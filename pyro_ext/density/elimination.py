"""Summing many discrete sites in few operations, for chains of hundreds of steps and more.

Tensor variable elimination sums one site after another. Sites of which no two are in one factor
can be summed at the same time, and where their factors are of the same form, by one operation on
factors that are stacked. Every other site of a chain is summed first, then every other one of those
that are left: a chain of T steps takes log2 T rounds. Two chains side by side, chains of second
order and trees are shortened by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_ext.density.log_einsum import einsum

#: Discrete sites up to which they are summed one after another.
FEW = 16
#: Terms of a sum, with entries of its result that discrete sites number, up to which a site is
#: summed here; sums of more are left to be taken in an order that keeps them short.
LARGEST_SUM = 4096


class Stack(NamedTuple):
    """A factor that is one entry, along the first axis, of factors of one form."""

    tensor: Tensor
    place: int


@dataclass(frozen=True)
class Term:
    """A factor.

    Parameters
    ----------
    stack : Stack
    dims : str
        Symbols of its dimensions, discrete sites and plates, in their order.
    plates : frozenset of str
        Symbols of the plates around it.
    """

    stack: Stack
    dims: str
    plates: frozenset[str]

    @property
    def shape(self) -> torch.Size:
        """Sizes of its dimensions."""
        return self.stack.tensor.shape[1:]


def without_most(
    terms: Iterable[tuple[Tensor, str, frozenset[str]]],
    summed: set[str],
    order: Mapping[str, int],
    sizes: Mapping[str, int],
) -> list[tuple[Tensor, str, frozenset[str]]]:
    """Factors whose product has the same sum, with most discrete sites summed out.

    Parameters
    ----------
    terms : iterable of (tensor, str, frozenset of str)
        Logarithms of factors, symbols of their dimensions, and of the plates around them.
    summed : set of str
        Symbols of discrete sites.
    order : mapping of str to int
        Of all symbols.
    sizes : mapping of str to int
        Rows of plates.
    """
    rounds = _Rounds(summed, order, sizes)
    for tensor, dims, plates in terms:
        rounds.add(_in_order(tensor, dims, plates, order))
    rounds.reduce_plates()
    while len(rounds.left) > FEW and rounds.sum_some():
        pass
    rounds.join_sums()
    return [
        (each.stack.tensor[each.stack.place], each.dims, each.plates)
        for each in rounds.terms.values()
    ]


def _in_order(tensor: Tensor, dims: str, plates: frozenset[str], order: Mapping[str, int]) -> Term:
    sorted_dims = "".join(sorted(dims, key=order.__getitem__))
    if sorted_dims != dims:
        tensor = tensor.permute([dims.index(symbol) for symbol in sorted_dims])
    return Term(Stack(tensor.unsqueeze(0), 0), sorted_dims, plates)


class _Rounds:
    """Factors, and the discrete sites that are left."""

    def __init__(
        self, summed: set[str], order: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        self.left = sorted(summed, key=order.__getitem__)
        self.order, self.sizes = order, dict(sizes)
        self.terms: dict[int, Term] = {}
        self.of: dict[str, dict[int, None]] = {symbol: {} for symbol in self.left}
        self._numbers = count()

    def add(self, term: Term) -> None:
        """One factor more."""
        number = next(self._numbers)
        self.terms[number] = term
        for symbol, size in zip(term.dims, term.shape, strict=True):
            self.sizes[symbol] = size
            if symbol in self.of:
                self.of[symbol][number] = None

    def _take(self, number: int) -> Term:
        term = self.terms.pop(number)
        for symbol in term.dims:
            if symbol in self.of:
                del self.of[symbol][number]
        return term

    def reduce_plates(self) -> None:
        """Multiply factors over plates in which none of their discrete sites is."""
        # The plates that a discrete site is in: those that all of its factors share.
        homes = {
            symbol: frozenset.intersection(*(self.terms[number].plates for number in numbers))
            for symbol, numbers in self.of.items()
            if numbers
        }
        groups: dict[Any, list[tuple[int, frozenset[str]]]] = {}
        for number, term in self.terms.items():
            sites = [symbol for symbol in term.dims if symbol in homes]
            outside = term.plates - frozenset().union(*(homes[symbol] for symbol in sites))
            if not sites or not outside:
                continue
            inside = tuple(symbol in outside for symbol in term.dims)
            missing = tuple(sorted(outside - set(term.dims)))
            # Of one form, so that factors can be stacked and summed by one operation.
            key = term.shape, inside, missing
            groups.setdefault(key, []).append((number, outside))
        for (_, inside, missing), members in groups.items():
            old = [(self._take(number), outside) for number, outside in members]
            stacked = _stacked([term.stack for term, _ in old])
            axes = [axis for axis, out in enumerate(inside, 1) if out]
            reduced = stacked.sum(axes) if axes else stacked
            times = 1
            for symbol in missing:
                times *= self.sizes[symbol]
            # A factor without the dimension of a plate is the same in each of its rows.
            reduced = reduced * times if times != 1 else reduced
            for place, (term, outside) in enumerate(old):
                dims = "".join(symbol for symbol in term.dims if symbol not in outside)
                self.add(Term(Stack(reduced, place), dims, term.plates - outside))

    def _result(self, symbol: str) -> tuple[int, str] | None:
        """Terms of the sum over a site with entries of its result, and the result's dimensions.

        None where it cannot be summed here.
        """
        terms = [self.terms[number] for number in self.of[symbol]]
        if not terms or any(term.plates != terms[0].plates for term in terms):
            return None
        dims = dict.fromkeys(other for term in terms for other in term.dims)
        cost = 1
        for other in dims:
            if other in self.of:
                cost *= self.sizes[other]
        # Left for the order of ``contract_tensor_tree``: every neighbour of a site comes into the
        # result, so that a sum here may be larger than any in a better order.
        if cost > LARGEST_SUM:
            return None
        del dims[symbol]
        return cost, "".join(sorted(dims, key=self.order.__getitem__))

    def sum_some(self) -> bool:
        """Sum sites of which no two are in one factor; whether there are any."""
        found = {symbol: self._result(symbol) for symbol in self.left}
        able = [symbol for symbol, result in found.items() if result is not None]
        # The cheapest first: what is left of others may have become cheaper by then.
        able.sort(key=lambda symbol: found[symbol][0])  # type: ignore[index]
        taken: set[int] = set()
        groups: dict[Any, list[str]] = {}
        for symbol in able:
            numbers = self.of[symbol]
            # A neighbour is summed in this round, and has taken the factor that both are in.
            if not taken.isdisjoint(numbers):
                continue
            taken.update(numbers)
            groups.setdefault(self._form(symbol, found[symbol][1]), []).append(symbol)  # type: ignore[index]
        for (equation, *_), symbols in groups.items():
            old = [[self._take(number) for number in list(self.of[symbol])] for symbol in symbols]
            operands = [_stacked([term.stack for term in same]) for same in zip(*old, strict=True)]
            result = einsum(equation, *operands)
            for place, (symbol, terms) in enumerate(zip(symbols, old, strict=True)):
                dims = found[symbol][1]  # type: ignore[index]
                self.add(Term(Stack(result, place), dims, terms[0].plates))
                del self.of[symbol]
        self.left = [symbol for symbol in self.left if symbol in self.of]
        return bool(groups)

    def join_sums(self) -> None:
        """Add up what has no discrete sites any more."""
        groups: dict[Any, list[int]] = {}
        for number, term in self.terms.items():
            if not any(symbol in self.of for symbol in term.dims):
                groups.setdefault((term.dims, term.plates), []).append(number)
        for numbers in groups.values():
            if len(numbers) > 1:
                old = [self._take(number) for number in numbers]
                total = _stacked([term.stack for term in old]).sum(0, keepdim=True)
                self.add(Term(Stack(total, 0), old[0].dims, old[0].plates))

    def _form(self, symbol: str, result: str) -> tuple[object, ...]:
        """The sum over a site as an equation whose symbols are the same for all of one form."""
        # In an order that does not depend on names, so that sums of one form have one equation.
        ranked = sorted(self.of[symbol], key=lambda number: self._rank(number, symbol))
        self.of[symbol] = dict.fromkeys(ranked)
        terms = [self.terms[number] for number in self.of[symbol]]
        names: dict[str, str] = {}
        for term in terms:
            for other in term.dims:
                names.setdefault(other, chr(ord("B") + len(names)))
        # A is the dimension along which sums of one form are stacked.
        inputs = ",".join("A" + "".join(map(names.__getitem__, term.dims)) for term in terms)
        equation = f"{inputs}->A{''.join(map(names.__getitem__, result))}"
        return equation, *(term.shape for term in terms)

    def _rank(self, number: int, symbol: str) -> tuple[int, int, int]:
        """Where a factor stands among those of a site, whatever the names of sites are."""
        dims = self.terms[number].dims
        return len(dims), dims.index(symbol), number


def _stacked(stacks: list[Stack]) -> Tensor:
    """Entries of stacks, stacked."""
    sources: dict[int, tuple[Tensor, int]] = {}
    length = 0
    for each in stacks:
        if id(each.tensor) not in sources:
            sources[id(each.tensor)] = each.tensor, length
            length += len(each.tensor)
    tensors = [tensor for tensor, _ in sources.values()]
    joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    places = [sources[id(each.tensor)][1] + each.place for each in stacks]
    if places == list(range(length)):
        return joined
    return joined.index_select(0, torch.tensor(places, device=joined.device))
