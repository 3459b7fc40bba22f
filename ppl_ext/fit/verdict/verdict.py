"""What a fit is worth: one word, the reasons for it, figures by site, and what it cost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NoReturn

from ppl_ext.diagnostics.habits import no_attribute
from ppl_ext.diagnostics.tables import Table, block, listed, paragraph

Level = Literal["exact", "corrected", "approximate", "not trusted"]

#: What each level says.
MEANING: dict[Level, str] = {
    "exact": "the chains agree with each other",
    "corrected": "draws of a Normal approximation, reweighted, and the weights are even",
    "approximate": "draws of an approximation, which nothing has confirmed",
    "not trusted": "do not rely on these draws, they may be wrong",
}
#: What is said of draws that chains confirmed.
CONFIRMED = "trusted, the draws agree with chains that agree with each other"
#: The same of predictions, at rows of training and at those that were held out.
PREDICTIONS_CONFIRMED = (
    "predictions confirmed: chains that started apart agree in them, and held-out rows are "
    "calibrated"
)
#: The number of the schema of :meth:`Verdict.as_dict`, which goes up when a name in it changes.
SCHEMA = 1
#: Stages of a fit in words.
STAGES = {
    "start": "finding a mode",
    "all rows": "finding a mode, with all rows",
    "modes": "looking for other modes",
    "corrected draws": "correcting draws",
    "mixtures": "fitting mixtures",
    "jumps": "sampling by jumps",
    "chains": "sampling",
    "pairs of chains": "coupling chains",
    "more chains": "sampling further",
    "engine": "running an engine",
    "ensemble": "training an ensemble",
    "network chains": "sampling a network",
    "adjusted chains": "sampling a network, moves accepted or refused",
}
#: First words of sentences that say what to do: by these a reason is parted into what was found and
#: advice.
VERBS = (
    *("Add", "Centre", "Fit", "Give", "Look", "Order", "Pass", "Raise", "Read", "Run", "Take"),
    *("Try", "Use", "Where", "Write"),
)
_SENTENCES = re.compile(r"(?<=[.:!?])\s+(?=[A-Z'])")
#: What users of other libraries type next of a verdict, and what to type here.
WORDS = {
    **dict.fromkeys(("to_dict", "to_json", "dict", "asdict", "keys", "get"), "verdict.as_dict()"),
    **dict.fromkeys(
        ("r_hat", "rhat", "ess", "ess_bulk", "mean", "sd"),
        'verdict.by_site["site"], or fit.summary(), which has a column of it',
    ),
    "summary": "print(verdict), or fit.summary()",
    "verdict": "{it}.level and {it}.reasons, or print({it}): it is the verdict",
    "ok": "verdict.trusted",
    "is_trusted": "verdict.trusted",
}
#: Numbers of a site up to which a verdict shows all: of more it shows the least certain one.
MOST_SHOWN = 8


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
class Value:
    """Mean and standard deviation of one number, and what they are worth.

    Attributes
    ----------
    name : str
        Such as "theta[2]".
    mean, sd : float
    mean_error, sd_error : float
        Standard errors, in the units of the number; of draws that were held against others bounds
        on the errors. NaN where they are not known; infinite where tails are so heavy that there is
        no standard deviation.
    ess_bulk, ess_tail, r_hat : float
    lower, upper : float
        Between these nine tenths of the draws lie: the 5 % and the 95 % quantile. NaN where they
        are not known.
    """

    name: str
    mean: float
    sd: float
    mean_error: float
    sd_error: float
    ess_bulk: float
    ess_tail: float
    r_hat: float
    lower: float = math.nan
    upper: float = math.nan


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
    size : int
        Numbers that the site has.
    values : tuple of Value
        Of each of them, or, where there are more than eight, of the least certain one.
    """

    ess_bulk: float
    ess_tail: float
    r_hat: float
    is_heavy: bool = False
    deviation_error: float = float("nan")
    mean_bound: float | None = None
    size: int = 1
    values: tuple[Value, ...] = ()

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
        "exact", "corrected", "approximate" or "not trusted"; see ``MEANING``. "exact" claims that
        the draws have no error but that of their number, given the modes that were found.
    reasons : tuple of str
        Why, in words, with figures, and what to do.
    by_site : dict of str to SiteFigures
    cost : tuple of Stage
    confirmed : bool
        Whether draws that nothing corrected agree with chains that are exact.
    num_chains : int
        Chains that the draws are of; 0 where that is not known.
    total_variation : float, optional
        Upper bound on the total variation distance of the draws' distribution from that which the
        chains come to, with 95 % confidence, from pairs of chains that start far apart. A part of
        the posterior that neither starts nor chains reach is not in it. None where there are no
        chains, or pairs did not meet; the reasons say so then.
    of_outputs : bool
        Whether the draws are judged by the predictions of a network, and not by their sites.

    Examples
    --------
    >>> verdict = Verdict("not trusted", ("Chains disagree: R-hat 1.2. Give a larger budget=.",))
    >>> verdict.trusted
    False
    >>> print(verdict)
    not trusted: do not rely on these draws, they may be wrong
      - Chains disagree: R-hat 1.2.
    What to do:
      1. Give a larger budget=.
    >>> verdict.as_dict()["advice"]
    ['Give a larger budget=.']
    """

    level: Level
    reasons: tuple[str, ...]
    by_site: Mapping[str, SiteFigures] = field(default_factory=dict)
    cost: tuple[Stage, ...] = ()
    confirmed: bool = False
    num_chains: int = 0
    total_variation: float | None = None
    of_outputs: bool = False

    def __getattr__(self, name: str) -> NoReturn:
        no_attribute(self, name, "verdict", WORDS)

    def __repr__(self) -> str:
        return f"Verdict({self.headline})"

    @property
    def trusted(self) -> bool:
        """Whether the level is "exact" or "corrected", or something confirmed the draws."""
        return self.confirmed or self.level in ("exact", "corrected")

    @property
    def headline(self) -> str:
        """The level, and what it says, in one line."""
        if self.confirmed and self.of_outputs:
            return f"{self.level}, {PREDICTIONS_CONFIRMED}"
        if self.confirmed:
            return f"{self.level}: {CONFIRMED}"
        if self.level == "exact" and self.num_chains > 1:
            return f"exact: {self.num_chains} chains agree{' in predictions' * self.of_outputs}"
        return f"{self.level}: {MEANING[self.level]}"

    @property
    def findings(self) -> tuple[str, ...]:
        """The reasons without what to do."""
        return tuple(told for told, _ in map(_parted, self.reasons) if told)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, each once: the sentences of the reasons that begin with a verb.

        One that another begins with is left out, such as "Give a larger budget=." where seconds
        are missing as well.
        """
        every = dict.fromkeys(each for _, more in map(_parted, self.reasons) for each in more)

        def is_part(one: str) -> bool:
            return any(other != one and other.startswith(one.rstrip(".")) for other in every)

        return tuple(one for one in every if not is_part(one))

    @property
    def worst(self) -> Value | None:
        """The number whose mean is least certain; None where nothing is known of them."""
        values = [value for site in self.by_site.values() for value in site.values]
        return min(values, key=lambda value: value.ess_bulk) if values else None

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

    def as_dict(self) -> dict[str, Any]:
        """The verdict for programs: plain values that JSON has, None where a figure is not known.

        Returns
        -------
        dict
            ``schema`` (1), ``level``, ``trusted``, ``confirmed``, ``num_chains``,
            ``total_variation``, ``headline``,
            ``reasons``, ``findings`` and ``advice`` (lists of str), ``worst`` (name of the least
            certain number, or None), ``sites`` (by site: ``size``, ``ess_bulk``, ``ess_tail``,
            ``r_hat``, ``mean_error`` and ``deviation_error`` in standard deviations, ``is_bound``,
            and ``values``, a list of dicts with the fields of :class:`Value`), ``stages`` (dicts
            with ``name``, ``evaluations``, ``seconds``, ``note``), ``evaluations``, ``seconds``.
        """
        worst = self.worst
        found = {
            "schema": SCHEMA,
            "level": self.level,
            "trusted": self.trusted,
            "confirmed": self.confirmed,
            "num_chains": self.num_chains,
            "total_variation": self.total_variation,
            "headline": self.headline,
            "reasons": list(self.reasons),
            "findings": list(self.findings),
            "advice": list(self.advice),
            "worst": None if worst is None else worst.name,
            "sites": {
                name: {
                    "size": site.size,
                    "ess_bulk": site.ess_bulk,
                    "ess_tail": site.ess_tail,
                    "r_hat": site.r_hat,
                    "mean_error": site.mean_error,
                    "deviation_error": site.deviation_error,
                    "is_heavy": site.is_heavy,
                    "is_bound": site.mean_bound is not None,
                    "values": [asdict(value) for value in site.values],
                }
                for name, site in self.by_site.items()
            },
            "stages": [asdict(stage) for stage in self.cost],
            "evaluations": self.evaluations,
            "seconds": self.seconds,
        }
        plain: dict[str, Any] = _finite(found)
        return plain

    def as_json(self) -> str:
        """The verdict as text, for :meth:`from_json`."""
        own = {each.name: getattr(self, each.name) for each in fields(Verdict)}
        return json.dumps(asdict(Verdict(**own)))

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
        sites = {}
        for name, site in found["by_site"].items():
            values = tuple(Value(**value) for value in site.pop("values", ()))
            sites[name] = SiteFigures(**site, values=values)
        return cls(
            found["level"],
            tuple(found["reasons"]),
            sites,
            tuple(Stage(**stage) for stage in found["cost"]),
            found["confirmed"],
            found.get("num_chains", 0),
            found.get("total_variation"),
            found.get("of_outputs", False),
        )

    def table(self) -> Table | None:
        """Means, standard deviations and quantiles; None where there are no figures by site.

        The errors behind ``±`` are standard errors, or bounds ("± <0.1") where draws were held
        against chains, and left out where the draws are not trusted: nobody knows them then.
        """
        if not self.by_site:
            return None
        rows = [row for name, site in self.by_site.items() for row in self._rows(name, site)]
        return Table(("site", "mean", "sd", "5%", "95%", "ESS", "R-hat"), rows)

    def _rows(self, name: str, site: SiteFigures) -> list[tuple[str, ...]]:
        unknown = math.nan
        values = site.values or (
            Value(
                name, unknown, unknown, unknown, unknown, site.ess_bulk, site.ess_tail, site.r_hat
            ),
        )
        more = f" (worst of {site.size:,})" if site.size > len(values) else ""
        bound = "<" if site.mean_bound is not None else ""

        def error(figure: float, infinite: str = "") -> str:
            if not self.trusted or math.isnan(figure):
                return ""
            return infinite if math.isinf(figure) else f" ± {bound}{figure:.2g}"

        return [
            (
                f"{value.name}{more}",
                _rounded(value.mean, value.sd) + error(value.mean_error),
                _short(value.sd) + error(value.sd_error, " (heavy tails)"),
                _rounded(value.lower, value.sd),
                _rounded(value.upper, value.sd),
                _whole(value.ess_bulk),
                "–" if math.isnan(value.r_hat) else f"{value.r_hat:.3f}",
            )
            for value in values
        ]

    def stages(self) -> Table | None:
        """What was done, and what it cost; None where that is not known."""
        if not self.cost:
            return None
        rows = [
            (
                STAGES.get(stage.name, stage.name),
                f"{stage.evaluations:,d}",
                f"{stage.seconds:.2f}",
                stage.note,
            )
            for stage in self.cost
        ]
        return Table(("stage", "evaluations", "seconds", ""), rows, left=(0, 3))

    def __str__(self) -> str:
        lines = [self.headline, *(f"  - {each}" for each in self.findings)]
        if self.advice:
            lines.append("What to do:")
            lines += [f"  {number}. {each}" for number, each in enumerate(self.advice, 1)]
        for table in (self.table(), self.stages()):
            if table is not None:
                lines += ["", str(table)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        advice = self.advice
        return block(
            paragraph(self.headline, bold=True),
            listed(self.findings),
            paragraph("What to do:") if advice else "",
            listed(advice, numbered=True),
            *(table.as_html() for table in (self.table(), self.stages()) if table is not None),
        )


def _parted(reason: str) -> tuple[str, list[str]]:
    """A reason without the sentences that say what to do, and these."""
    told, advice = list[str](), list[str]()
    for sentence in _SENTENCES.split(reason):
        is_advice = sentence.split(maxsplit=1)[0] in VERBS
        (advice if is_advice else told).append(sentence)
    return " ".join(told), advice


def _short(figure: float) -> str:
    """Two or three digits of a figure that is known to no more."""
    if not math.isfinite(figure):
        return "–"
    return f"{figure:.3g}" if 1e-3 <= abs(figure) < 1e4 or figure == 0.0 else f"{figure:.2g}"


def _rounded(mean: float, sd: float) -> str:
    """A mean with as many digits as its standard deviation makes worth reading."""
    if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0.0):
        return _short(mean)
    digits = 1 - math.floor(math.log10(sd))
    if digits > 6 or abs(mean) >= 1e7:
        return f"{mean:.4g}"
    return f"{mean:.{max(0, digits)}f}"


def _whole(figure: float) -> str:
    return f"{figure:,.0f}" if math.isfinite(figure) else "–"


def _finite(value: Any) -> Any:
    """The same with None for figures that are not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
