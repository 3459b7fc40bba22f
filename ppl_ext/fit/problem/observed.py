"""Which of the data a posterior is of, and the words where it is not of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ppl_ext.errors import DataWarning
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.target.layouts import DataPlate
from ppl_ext.target.log_density import NOTHING, UNTOUCHED


@dataclass(frozen=True)
class Observed:
    """Whether a program sees data, and which of its rows.

    Attributes
    ----------
    sees_data : bool
        Whether it has observed sites or factors.
    batches : mapping of str to DataPlate
        Plates of which the arguments hold a batch, where nothing gives the other rows.
    touches : bool
        Whether what it observes bears on a latent site.
    """

    sees_data: bool = True
    batches: Mapping[str, DataPlate] = field(default_factory=dict)
    touches: bool = True

    @property
    def against(self) -> tuple[str, ...]:
        """Why draws are not of the posterior of all rows."""
        return tuple(
            f"Plate '{name}' has {each.size} rows, of which the arguments hold "
            f"{each.subsample_size}: each counts {each.size / each.subsample_size:.3g} times, and "
            "the others not at all, so that the draws are not of the posterior of all rows. Pass "
            "all rows. Where they are too many, let the plate choose them (subsample_size=...), "
            "or give them by batches=loader."
            for name, each in self.batches.items()
        )

    @property
    def told(self) -> tuple[str, ...]:
        """What else there is to be said."""
        if not self.sees_data:
            return (NOTHING,)
        return () if self.touches else (UNTOUCHED,)

    def warn(self) -> None:
        """Say it before anything is computed."""
        for each in (*self.against, *self.told):
            warnings.warn(each, DataWarning, stacklevel=3)

    def judged(self, verdict: Verdict) -> Verdict:
        """A verdict with this among its reasons; draws of other data are not trusted."""
        reasons = (*self.against, *verdict.reasons, *self.told)
        if not self.against:
            return replace(verdict, reasons=reasons)
        return replace(verdict, level="not trusted", reasons=reasons, confirmed=False)
