"""Which guides have a flat log density: a registry of factories by guide class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ppl_ext.errors import ArgumentError
from ppl_ext.target.layouts import FlatLayout

Factory = TypeVar("Factory", bound=Callable[..., Any])
Registered = TypeVar("Registered", bound=Callable[..., Any])

#: Why hosts' guides that work on each site by itself are refused.
PER_SITE = "it works site by site and has no distribution over the flat vector"
#: Guides of both hosts that have no flat log density, and why.
REFUSED = {
    "AutoGuide": PER_SITE,
    "AutoNormal": PER_SITE + " (AutoDiagonalNormal is its flat equal)",
    "AutoDelta": "a point estimate has no density",
    "AutoGuideList": "it is a list of guides",
}


class FlatDensityRegistry(Generic[Factory]):
    """Factories of flat log densities, and reasons why there is none, by guide class.

    A class's entry serves its subclasses that have none of their own.

    Parameters
    ----------
    alternatives : str
        Guides that can be used in place of one that has none, for messages.
    host : module
        The host's guides, of which those in :data:`REFUSED` have none.
    """

    def __init__(self, alternatives: str, host: Any) -> None:
        self.alternatives = alternatives
        self.factories: dict[type, Factory] = {}
        self._refusals = {getattr(host, name): reason for name, reason in REFUSED.items()}

    def register(self, guide_class: type) -> Callable[[Registered], Registered]:
        """Decorator that enters what it is put on for guides of a class and its subclasses."""

        def decorate(factory: Registered) -> Registered:
            # A decorated class keeps its own type, which a factory of the class is not known to be.
            self.factories[guide_class] = factory  # type: ignore[assignment]
            # The latest word counts: a class may be refused here, and registered by a user who can
            # evaluate it.
            self._refusals.pop(guide_class, None)
            return factory

        return decorate

    def refuse(self, guide_class: type, reason: str) -> None:
        """Refuse guides of a class, with a reason that completes a sentence."""
        self._refusals[guide_class] = reason
        self.factories.pop(guide_class, None)

    def find(self, guide: Any) -> Factory:
        """The factory for a guide, found by its type.

        Raises
        ------
        ArgumentError
            The guide has no flat log density; the message names alternatives.
        """
        for guide_class in type(guide).__mro__:
            if guide_class in self.factories:
                return self.factories[guide_class]
            if guide_class in self._refusals:
                raise ArgumentError(
                    "Expected a guide with a log density over the flat unconstrained vector, found "
                    f"{type(guide).__name__}: {self._refusals[guide_class]}. {self.alternatives}"
                )
        found = guide.__name__ if callable(guide) and hasattr(guide, "__name__") else type(guide)
        raise ArgumentError(
            "Expected an autoguide object with a log density over the flat unconstrained vector, "
            f"found {found}. {self.alternatives}"
        )

    def knows(self, guide: Any) -> bool:
        """Whether a guide has a flat log density."""
        try:
            self.find(guide)
        except ArgumentError:
            return False
        return True


def check_same_sites(found: dict[str, tuple[int, ...]], layout: FlatLayout) -> None:
    """See that a guide's flat vector has the sites of the target, in its order.

    Raises
    ------
    ArgumentError
        It has not.
    """
    expected = {name: tuple(layout.shapes[name]) for name in layout.names}
    if list(found.items()) != list(expected.items()):
        raise ArgumentError(
            f"Expected a guide over the latent sites {expected} in this order, found {found}. "
            "Make the guide from the same model that the engine is given, and set it up with "
            "arguments of the same shapes."
        )
