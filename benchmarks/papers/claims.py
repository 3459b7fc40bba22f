"""A claim of a paper, the test of it by records, and the verdict that follows from the test.

A test compares two readings, run by run at the same seed or split, or holds one against a bound.
It is passed where the mean is better by more than two standard errors of the differences. A package
needs three runs at least, and runs that failed are worse than any other; where no run of a rival
succeeded the fault may be the benchmark's, and nothing is decided. The verdict:

=================  ==========================================================================
holds              both packages pass
holds in part      one does
does not hold      none does
not tried          no package has three runs with the readings, or there is no test
cannot be had      the data are not public
no claim           the table describes something that is not a result
=================  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np

from benchmarks import records
from benchmarks.records import LABELS, Record

#: Values by the seed, split or round that two readings share; NaN where the run failed.
Values = Mapping[int, float]
Verdict = Literal[
    "holds", "holds in part", "does not hold", "not tried", "cannot be had", "no claim"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: Standard errors that a difference has to be from 0; about the 5 % of a two-sided test.
ERRORS = 2.0
#: Runs without which a standard error says too little.
FEWEST = 3


@dataclass(frozen=True)
class Reading:
    """A figure of one method.

    Attributes
    ----------
    name : str
        The method as the page names it.
    of : callable
        From the records of one package to values.
    """

    name: str
    of: Callable[[Sequence[Record]], Values]


@dataclass(frozen=True)
class Outcome:
    """What one package's records say.

    Attributes
    ----------
    cell : str
        The figures; a dash where there are none.
    passed : bool, optional
        None where there are too few runs.
    reverse : bool
        The opposite of the claim is there, by more than two standard errors.
    """

    cell: str = "–"
    passed: bool | None = None
    reverse: bool = False


class Test(Protocol):
    """How records of one package are held against a claim."""

    def outcome(self, runs: Sequence[Record]) -> Outcome:
        """What they say."""


@dataclass(frozen=True)
class Beats:
    """Ours is better than each of its rivals.

    Attributes
    ----------
    ours : Reading
    rivals : tuple of Reading
        It is compared with the best of them; each has to have runs.
    larger : bool
        Whether larger is better.
    log : bool
        Values are compared by their logarithms, and shown by their medians: divergences differ by
        orders of magnitude from seed to seed.
    tie : bool
        It is enough not to be worse by more than two standard errors.
    """

    ours: Reading
    rivals: tuple[Reading, ...]
    larger: bool = False
    log: bool = False
    tie: bool = False

    def outcome(self, runs: Sequence[Record]) -> Outcome:
        """The comparison with the best rival at the seeds that both have."""
        ours = self._scaled(self.ours.of(runs))
        found = {rival.name: self._scaled(rival.of(runs)) for rival in self.rivals}
        found = {name: _at(values, ours) for name, values in found.items()}
        if not ours or not all(found.values()):
            return Outcome()
        name = max(found, key=lambda rival: float(np.mean(list(found[rival].values()))))
        theirs = found[name]
        own = _at(ours, theirs)
        differences = np.array([_difference(own[seed], theirs[seed]) for seed in theirs])
        cell = f"{self._shown(own)} against {self._shown(theirs)} ({name})"
        cell += f", {_counted(len(differences))}"
        if len(differences) < FEWEST or not np.isfinite(list(theirs.values())).any():
            return Outcome(cell)
        mean, error = _mean_and_error(differences)
        if math.isfinite(mean):
            word = "better" if mean >= 0.0 else "worse"
            cell += f", {word} by {self._told(abs(mean), error)}"
        least = ERRORS * error * (-1.0 if self.tie else 1.0)
        return Outcome(cell, bool(mean > least), bool(mean < -ERRORS * error))

    def _scaled(self, values: Values) -> dict[int, float]:
        """Values of which larger are better; minus infinity where a run failed."""
        sign = 1.0 if self.larger else -1.0
        return {
            seed: -math.inf if not math.isfinite(value) else sign * self._scale(value)
            for seed, value in values.items()
        }

    def _scale(self, value: float) -> float:
        if not self.log:
            return value
        return math.log10(value) if value > 0.0 else -math.inf

    def _shown(self, scaled: Values) -> str:
        sign = 1.0 if self.larger else -1.0
        fine = sign * np.array([value for value in scaled.values() if math.isfinite(value)])
        failed = len(scaled) - len(fine)
        if self.log and len(fine):
            text = f"{10.0 ** float(np.median(fine)):.3g}"
        else:
            text = shown(fine) if len(fine) else "none"
        return f"{text} ({failed} failed)" if failed else text

    def _told(self, mean: float, error: float) -> str:
        text = f"{mean:.2g} ± {error:.1g}"
        return f"{text} powers of ten" if self.log else text


@dataclass(frozen=True)
class Below:
    """A figure is below a bound.

    Attributes
    ----------
    ours : Reading
    bound : float
    beside : tuple of Reading
        Shown too.
    exact : bool
        The figure hardly varies, so that one run decides.
    """

    ours: Reading
    bound: float
    beside: tuple[Reading, ...] = ()
    exact: bool = False

    def outcome(self, runs: Sequence[Record]) -> Outcome:
        """Whether the mean is below the bound by more than two standard errors."""
        values = np.array(list(self.ours.of(runs).values()))
        if not len(values):
            return Outcome()
        parts = []
        for reading in (self.ours, *self.beside):
            found = np.array(list(reading.of(runs).values()))
            fine = found[np.isfinite(found)]
            failed = f" ({len(found) - len(fine)} failed)" if len(fine) < len(found) else ""
            parts.append(f"{reading.name} {shown(fine) if len(fine) else 'none'}{failed}")
        cell = ", ".join([*parts, _counted(len(values))])
        if self.exact:
            return Outcome(cell, bool(values.max() < self.bound), bool(values.min() > self.bound))
        if len(values) < FEWEST:
            return Outcome(cell)
        if not np.isfinite(values).all():
            return Outcome(cell, False)
        mean, error = _mean_and_error(values)
        margin = ERRORS * error
        return Outcome(cell, bool(mean + margin < self.bound), bool(mean - margin > self.bound))


def _counted(number: int) -> str:
    return "one run" if number == 1 else f"{number} runs"


def shown(values: Iterable[float]) -> str:
    """Mean, and its standard error where there are several values."""
    numbers = np.array(list(values), np.float64)
    mean, error = _mean_and_error(numbers)
    # What rounding leaves of equal values is no error.
    if math.isnan(error) or error <= 1e-12 * abs(mean):
        return f"{mean:.4g}"
    # As many decimals as the error's first digit.
    decimals = min(6, max(0, -math.floor(math.log10(error))))
    return f"{mean:.{decimals}f} ± {error:.1g}"


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    if not np.isfinite(values).all():
        # A method that fails in some runs is beaten where it is beaten in all others too; else
        # neither is.
        signs = set(np.sign(values))
        return (math.inf * float(signs.pop()) if len(signs) == 1 else math.nan), 0.0
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), error


def _difference(ours: float, theirs: float) -> float:
    if not math.isfinite(ours):
        return -math.inf
    return math.inf if not math.isfinite(theirs) else ours - theirs


def _at(values: Values, others: Values) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if seed in others}


@dataclass(frozen=True)
class Claim:
    """A row of a page's table.

    Attributes
    ----------
    table : str
        Of the paper, with the set.
    says : str
        The claim.
    theirs : str
        The paper's figures, as printed.
    test : Test, optional
        None where nothing is measured.
    command : str
        That makes the records, without ``python -m benchmarks`` and the package.
    why : str
        How the study differs from the paper's, or why there is no test.
    fixed : Verdict, optional
        Where there is no test.
    """

    table: str
    says: str
    theirs: str
    test: Test | None = None
    command: str = ""
    why: str = ""
    fixed: Verdict = field(default="not tried")

    def outcomes(self, by_package: Mapping[str, Sequence[Record]]) -> dict[str, Outcome]:
        """What the records of each package say."""
        if self.test is None:
            return {label: Outcome() for label in LABELS.values()}
        return {
            label: self.test.outcome(by_package.get(name, ())) for name, label in LABELS.items()
        }

    def verdict(self, outcomes: Mapping[str, Outcome]) -> Verdict:
        """What follows from them."""
        if self.test is None:
            return self.fixed
        passed = [each.passed for each in outcomes.values() if each.passed is not None]
        if not passed:
            return "not tried"
        if sum(passed) == len(outcomes):
            return "holds"
        return "holds in part" if any(passed) else "does not hold"

    def reason(self, outcomes: Mapping[str, Outcome]) -> str:
        """The verdict in a sentence, and what there is to say about the study."""
        parts = []
        if self.test is not None:
            passed = [label for label, each in outcomes.items() if each.passed]
            failed = {label: each for label, each in outcomes.items() if each.passed is False}
            reverse = [label for label, each in failed.items() if each.reverse]
            open_ = [label for label, each in failed.items() if not each.reverse]
            absent = [label for label, each in outcomes.items() if each.passed is None]
            if passed and (failed or absent):
                parts.append(f"So in {' and '.join(passed)}.")
            if reverse:
                parts.append(f"The reverse in {' and '.join(reverse)}.")
            if open_:
                parts.append(f"Not told apart in {' and '.join(open_)}.")
            if absent:
                parts.append(f"Too few runs in {' and '.join(absent)}.")
        return " ".join([*parts, self.why]).strip()

    def row(self, by_package: Mapping[str, Sequence[Record]]) -> dict[str, str]:
        """Its cells."""
        outcomes = self.outcomes(by_package)
        cells = {label: each.cell for label, each in outcomes.items()}
        return {
            "table": self.table,
            "claim": self.says,
            "the paper's figures": self.theirs or "–",
            **cells,
            "verdict": self.verdict(outcomes),
            "why": self.reason(outcomes) or "–",
            "command": f"`{self.command}`" if self.command else "–",
        }


def by_package(runs: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by the package, which some studies write as its label."""
    found: dict[str, list[Record]] = {name: [] for name in LABELS}
    for run in runs:
        if (name := run.backend.lower()) in found:
            found[name].append(run)
    return found


def table(claims: Sequence[Claim], runs: Iterable[Record]) -> str:
    """Markdown of the claims' rows."""
    packages = by_package(runs)
    return records.markdown_table([claim.row(packages) for claim in claims])


def failing(papers: Mapping[str, Sequence[Claim]], runs: Iterable[Record]) -> str:
    """Markdown of the claims of all papers that fail in a package."""
    packages = by_package(runs)
    rows = []
    for paper, claims in papers.items():
        for claim in claims:
            row = claim.row(packages)
            if any(each.passed is False for each in claim.outcomes(packages).values()):
                kept = ("table", "claim", *LABELS.values(), "verdict")
                rows.append({"paper": paper, **{name: row[name] for name in kept}})
    return records.markdown_table(rows) or "None so far.\n"
