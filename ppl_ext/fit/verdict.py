"""What a fit is worth: one word, the reasons for it, figures by site, and what it cost."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

Level = Literal["exact", "corrected", "approximate", "not trusted"]

#: What each level says.
MEANING: dict[Level, str] = {
    "exact": "chains that leave the posterior as it is have come to rest",
    "corrected": "draws of an approximation, reweighted to the posterior",
    "approximate": "draws of an approximation that nothing has corrected",
    "not trusted": "the draws may be wrong",
}
#: What is said of draws that chains confirmed.
CONFIRMED = "draws that agree with exact chains"


@dataclass(frozen=True)
class Stage:
    """A part of a fit's work.

    Attributes
    ----------
    name : str
    evaluations : int
        Of the log density or its score, one for each position.
    seconds : float
    note : str
        What it found.
    """

    name: str
    evaluations: int
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class SiteFigures:
    """What the draws of one site are worth, in its worst coordinate.

    Attributes
    ----------
    ess_bulk, ess_tail : float
        Effective numbers of draws.
    r_hat : float
        NaN where there are no chains.
    is_heavy : bool
        Whether tails are too heavy for a standard deviation.
    deviation_error : float
        Standard error of the standard deviation, as a share of it; of draws that were held against
        others a bound on its error. NaN where it is not known.
    mean_bound : float, optional
        Of such draws a bound on the error of the mean, in standard deviations.
    """

    ess_bulk: float
    ess_tail: float
    r_hat: float
    is_heavy: bool = False
    deviation_error: float = float("nan")
    mean_bound: float | None = None

    @property
    def mean_error(self) -> float:
        """Standard error of the mean, or the bound on it, in standard deviations."""
        if self.mean_bound is not None:
            return self.mean_bound
        return self.ess_bulk**-0.5 if self.ess_bulk > 0.0 else float("inf")


@dataclass(frozen=True)
class Verdict:
    """Whether draws may be trusted.

    Attributes
    ----------
    level : str
        "exact", "corrected", "approximate" or "not trusted"; see ``MEANING``.
    reasons : tuple of str
        Why, in words, with figures, and what to do.
    by_site : dict of str to SiteFigures
    cost : tuple of Stage
    confirmed : bool
        Whether draws that nothing corrected agree with chains that are exact.
    total_variation : float, optional
        Upper bound on the total variation distance of the draws' distribution from that which the
        chains come to, with 95 % confidence, from pairs of chains that start far apart. A part of
        the posterior that neither starts nor chains reach is not in it. None where there are no
        chains, or pairs did not meet; the reasons say so then.

    Examples
    --------
    >>> verdict = Verdict("approximate", ("All rows were too many.",))
    >>> verdict.trusted
    False
    >>> print(verdict)
    approximate: draws of an approximation that nothing has corrected
      - All rows were too many.
    """

    level: Level
    reasons: tuple[str, ...]
    by_site: Mapping[str, SiteFigures] = field(default_factory=dict)
    cost: tuple[Stage, ...] = ()
    confirmed: bool = False
    total_variation: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the level is "exact" or "corrected", or chains confirmed the draws."""
        return self.confirmed or self.level in ("exact", "corrected")

    @property
    def evaluations(self) -> int:
        """Evaluations of all stages."""
        return sum(stage.evaluations for stage in self.cost)

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(stage.seconds for stage in self.cost)

    def attributes(self) -> dict[str, str | int | float]:
        """The verdict as attributes of a file."""
        bound = self.total_variation
        return {
            "verdict": self.level,
            "verdict_trusted": int(self.trusted),
            "verdict_reasons": " ".join(self.reasons),
            "score_evaluations": self.evaluations,
            "fit_seconds": self.seconds,
            **({} if bound is None else {"total_variation": bound}),
        }

    def as_json(self) -> str:
        """The verdict as text, for :meth:`from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """The verdict that was written as text.

        Raises
        ------
        ValueError
            It has a level that there is not.
        """
        found = json.loads(text)
        if found["level"] not in MEANING:
            raise ValueError(f"its level is {found['level']!r}")
        return cls(
            found["level"],
            tuple(found["reasons"]),
            {name: SiteFigures(**site) for name, site in found["by_site"].items()},
            tuple(Stage(**stage) for stage in found["cost"]),
            found["confirmed"],
            found.get("total_variation"),
        )

    def __str__(self) -> str:
        meaning = CONFIRMED if self.confirmed else MEANING[self.level]
        lines = [f"{self.level}: {meaning}"]
        lines += [f"  - {reason}" for reason in self.reasons]
        if self.by_site:
            width = max(len("site"), *map(len, self.by_site))
            title = "mean's error, sd  sd's error  ESS bulk  ESS tail  R-hat"
            lines += ["", f"{'site':{width}}  {title}"]
            lines += [
                f"{name:{width}}  {site.mean_error:16.3f}  "
                f"{_known(site.deviation_error, '10.1%')}  {site.ess_bulk:8.0f}  "
                f"{site.ess_tail:8.0f}  {_known(site.r_hat, '5.3f')}"
                for name, site in self.by_site.items()
            ]
        if self.cost:
            width = max(len("stage"), *(len(stage.name) for stage in self.cost))
            lines += ["", f"{'stage':{width}}  evaluations  seconds"]
            lines += [
                f"{stage.name:{width}}  {stage.evaluations:11,d}  {stage.seconds:7.2f}  "
                f"{stage.note}".rstrip()
                for stage in self.cost
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _known(figure: float, form: str) -> str:
    """A figure, or a dash as wide where there is none."""
    width = int(form.partition(".")[0])
    return f"{'–':>{width}}" if math.isnan(figure) else f"{figure:{form}}"
