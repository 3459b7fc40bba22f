"""What both backends' fits have in common: the form of a fit and the error of one that diverged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from benchmarks.synthetic.experiments import Case
from benchmarks.synthetic.targets import Mixture

#: Called with the score evaluations spent so far and the fit as it is then.
Look = Callable[[int, Mixture], None]


class Diverged(ArithmeticError):
    """A fit or a step of it that is not finite. The run ends there."""


class Fitter(Protocol):
    """One method on cases of one shape."""

    def fit(self, case: Case, seed: int, look: Look) -> None:
        """Fit the case's target of a seed, and show the fit along the way, the start included.

        Raises
        ------
        Diverged
            A step or the fit is not finite.
        """


def show(look: Look, evaluations: int, fit: Mixture) -> None:
    """Hand the fit to ``look``, or raise :class:`Diverged` when it is not finite."""
    if not fit.is_finite():
        raise Diverged(f"the fit is not finite after {evaluations} score evaluations")
    look(evaluations, fit)
