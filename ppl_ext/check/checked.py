"""What ``check`` returns: a verdict that shows the draws as a fit shows its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ppl_ext.check.source import Source
from ppl_ext.diagnostics.habits import OF_SUMMARY, answers
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.target.on_host import on_host

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class _OfDraws:
    """Draws of a program in the place of a climb, which did not make them."""

    problem: Problem
    draws: dict[str, Any]
    symmetry: None = None

    @property
    def ordered_draws(self) -> dict[str, Any]:
        """The draws as they are."""
        return self.draws


@dataclass(frozen=True, repr=False)
class Checked(Verdict):
    """A verdict on draws of any method, which shows them as a fit shows its own.

    It has all that a :class:`Verdict` has, and the methods of a :class:`Fit` to look at draws:
    ``summary``, ``to_arviz``, ``plot``, ``predict``, ``get_samples`` and ``checked["site"]``.

    Examples
    --------
    >>> verdict = Checked("not trusted", ("Chains disagree: R-hat 1.2.",))
    >>> verdict.trusted
    False
    """

    _fit: Fit | None = field(default=None, repr=False, compare=False)
    #: Why there are no predictions, where there are none.
    _unpredictable: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, verdict: Verdict, source: Source, problem: Problem, held: Sequence[str]) -> Checked:
        """A verdict on draws of a program, of which some parameters were held."""
        own = {each.name: getattr(verdict, each.name) for each in fields(Verdict)}
        # Without a program, or without draws of all latent sites, there is nothing to show.
        if problem.views is None or not set(problem.target.layout.names) <= set(source.draws):
            return cls(**own)
        names = (*problem.target.layout.names, *problem.target.parameter_sites)
        # In the precision of the program.
        kinds = {n: x.dtype for n, x in problem.values(np.zeros((1, problem.dim))).items()}
        draws = {
            name: np.asarray(on_host(source.draws[name])).astype(
                str(kinds[name]).removeprefix("torch.")
            )
            for name in names
            if name in source.draws
        }
        climbed = cast("Any", _OfDraws(problem, draws))
        told = ""
        if held and source.held:
            told = (
                f"Expected a program whose parameters all have priors, found {', '.join(held)}, "
                "which were fitted. Call predictive_distribution, which takes their values."
            )
        return cls(**own, _fit=Fit(draws, verdict, source.chains, climbed), _unpredictable=told)

    @property
    def seen(self) -> Fit:
        """The draws that were judged, as a fit's.

        Raises
        ------
        ArgumentError
            They are not there: the verdict was read from text, or draws were missing.
        """
        if self._fit is None:
            raise ArgumentError(
                "Expected a verdict with the draws that were judged, found one alone. Call "
                "check(draws, model, *args) again, in NumPyro with a key first."
            )
        return self._fit

    def __getitem__(self, name: str) -> np.ndarray:
        """Draws of a site, latent or deterministic, as NumPy's array; first axis = draws."""
        return self.seen[name]

    def get_samples(self, num_samples: int | None = None) -> dict[str, Any]:
        """The draws that were judged, as NumPy's arrays, or so many of them; see :class:`Fit`."""
        return self.seen.get_samples(num_samples=num_samples)

    @answers(OF_SUMMARY)
    def summary(
        self, sites: Sequence[str] | None = None, *, probability: float = 0.9
    ) -> pd.DataFrame:
        """Figures of each number, a row each; see :meth:`Fit.summary`."""
        return self.seen.summary(sites, probability=probability)

    def to_arviz(self, *args: Any, **options: Any) -> Any:
        """The draws for ArviZ, with the arguments of the check; see :meth:`Fit.to_arviz`."""
        return self.seen.to_arviz(*args, **options)

    def plot(self, kind: str = "posterior", **options: Any) -> Any:
        """A picture by ArviZ; see :meth:`Fit.plot`."""
        return self.seen.plot(kind, **options)

    def predict(
        self,
        *args: Any,
        num_samples: int | None = None,
        seed: int = 0,
        return_sites: Collection[str] | None = None,
        **kwargs: Any,
    ) -> Mapping[str, np.ndarray]:
        """New values of the observed sites; see :meth:`Fit.predict`."""
        if self._unpredictable:
            raise ArgumentError(self._unpredictable)
        options: dict[str, Any] = {"num_samples": num_samples, "seed": seed}
        return self.seen.predict(*args, return_sites=return_sites, **options, **kwargs)
