"""The order in which a loader gives its batches: how a run goes back to a place in it.

A loader with a state of its own (``state_dict`` and ``load_state_dict``, as those of torchdata and
Hugging Face have; or ``get_state`` and ``set_state`` of its iterators, as grain's) is put there by
it. A ``DataLoader`` of torch that shuffles by a generator gets the generator's state of the
beginning of the epoch, and any other loader is taken to give the same order again, by the number
of the epoch where it has ``set_epoch``; both are then advanced to the place by reading.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described


class Order:
    """What is known of a loader's order.

    Parameters
    ----------
    loader : iterable

    Raises
    ------
    ArgumentError
        It cannot be iterated over.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        if isinstance(loader, str | bytes | dict | tuple) or not hasattr(loader, "__iter__"):
            raise ArgumentError(
                "Expected batches to be an iterable of tuples, one for each batch, such as a "
                f"DataLoader, found {described(loader)}. Write [(x, y)] for one batch of all rows."
            )
        self.loader: Any = loader
        #: Whether it can be iterated over once only.
        self.one_pass = isinstance(loader, Iterator)
        self._has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._generators, unseeded = _generators(loader)
        self._before: list[Any] = []
        #: Why nobody can know the order that it will give again; empty where one can.
        self.unknown = ""
        if not self._has_state and unseeded:
            self.unknown = (
                "it shuffles without a generator of its own. Pass "
                "generator=torch.Generator().manual_seed(0) to it, or use a StatefulDataLoader"
            )

    @property
    def is_shared(self) -> bool:
        """Whether a second pass over the loader would disturb one that is under way."""
        persistent = bool(getattr(self.loader, "persistent_workers", False))
        return self._has_state or bool(self._generators) or persistent or self.one_pass

    @property
    def has_processes(self) -> bool:
        """Whether the loader reads in processes of its own, as a DataLoader with workers does."""
        return bool(getattr(self.loader, "num_workers", 0))

    def begin(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch, from its first."""
        if not self._has_state:
            self._before = [each.get_state() for each in self._generators]
        self._set_epoch(epoch)
        return iter(self.loader)

    def _set_epoch(self, epoch: int) -> None:
        each: Any
        for each in (self.loader, getattr(self.loader, "sampler", None)):
            # Samplers of several processes shuffle by the number of the epoch.
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    def state(self, iterator: Iterator[Any]) -> Any:
        """State of the loader, its iterator or its generators, for :meth:`at`; None without one.

        That of generators is from the beginning of the epoch, whose batches are read again.
        """
        if self._has_state:
            # A loader may give its own dictionary and change it with the next batch, while this one
            # waits.
            own = copy.deepcopy(self.loader.state_dict())
            # torchdata's holds the generator of the present epoch, but not of those to come.
            return {"loader": own, "now": [each.get_state() for each in self._generators]}
        if hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
            return {"iterator": copy.deepcopy(iterator.get_state())}
        # From before the epoch, whose order is drawn as it begins.
        return {"generators": list(self._before)} if self._before else None

    def at(self, epoch: int, batches: int, state: Any) -> tuple[Iterator[Any], int]:
        """The batches of an epoch from a place on, and how many are still to be read before it."""
        # The first key says of what kind the state is. Where the loader is of another kind than the
        # one that was saved, as after a change of library, batches are read up to the place.
        kind, saved = next(iter(dict(state or {"": []}).items()))
        if kind == "loader" and self._has_state:
            # A sampler that shuffles by the number of the epoch has no state that the loader saves.
            self._set_epoch(epoch)
            self.loader.load_state_dict(saved)
            iterator = iter(self.loader)
            # After `iter`, which draws from them.
            for generator, each in zip(self._generators, state["now"], strict=True):
                generator.set_state(each)
            return iterator, 0
        if kind == "generators" and len(saved) == len(self._generators):
            for generator, each in zip(self._generators, saved, strict=True):
                generator.set_state(each)
        iterator = self.begin(epoch)
        if kind == "iterator" and hasattr(iterator, "set_state"):
            iterator.set_state(saved)
            return iterator, 0
        return iterator, batches


def _generators(loader: Any) -> tuple[list[Any], bool]:
    """The generators that a DataLoader of torch draws its order from; whether one is missing."""
    sampler, batch_sampler = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
    samplers = [sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
    own = [getattr(each, "generator", None) for each in samplers]
    missing = any(
        hasattr(each, "generator") and found is None
        for each, found in zip(samplers, own, strict=True)
    )
    found: list[Any] = []
    for each in (getattr(loader, "generator", None), *own):
        if hasattr(each, "get_state") and not any(each is other for other in found):
            found.append(each)
    return found, missing
