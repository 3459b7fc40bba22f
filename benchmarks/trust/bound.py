"""The bound on the total variation distance that a fit states, beside a measured distance.

A fit's words have its bound, which holds with 95 % confidence for the distance between its draws'
distribution and that which its chains come to. A Kolmogorov distance is no larger than that of
total variation. So a bound is *below* where the largest Kolmogorov distance of a marginal, less
what sampling makes of it, is larger: the fit has missed mass that no chain has come to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.hosts import BACKENDS
from benchmarks.records import Record
from benchmarks.trust.judge import LEAST_EFFECTIVE, LEVEL

#: Reach of the planted mode that is hardest to find from which on it can be asked for.
REACH = 0.01
#: How a verdict states its bound.
_STATED = re.compile(r"probability of any event by at most ([\d.]+)%")


def bound_of(figures: dict[str, Any]) -> float | None:
    """The stated bound of a fit; None where it states none."""
    found = _STATED.search(" ".join(figures["told"]))
    return None if found is None else float(found[1]) / 100.0


def is_below(figures: dict[str, Any], bound: float) -> bool:
    """Whether a marginal is farther off than the bound and sampling allow.

    By the inequality of Dvoretzky, Kiefer and Wolfowitz for all marginals together.
    """
    effective = max(LEAST_EFFECTIVE, figures["effective"] or 0.0)
    allowed = np.sqrt(np.log(2.0 * figures["dimension"] / LEVEL) / (2.0 * effective))
    return bool(figures["Kolmogorov"] - allowed > bound)


def page_table(runs: Sequence[Record]) -> str:
    """By package and reach: how many fits state a bound, how many of them are below, and cost."""
    rows = []
    fits = [each for each in runs if each.method == "fit" and "Kolmogorov" in each.figures]
    for backend in BACKENDS:
        for kind, is_low in (("1 % and more", False), ("below 1 %", True)):
            own = [
                each.figures
                for each in fits
                if each.backend == backend
                # Problems without planted modes have none.
                and (each.figures.get("reach", REACH) < REACH) is is_low
            ]
            bounds = [(each, bound) for each in own if (bound := bound_of(each)) is not None]
            if not bounds:
                continue
            costs = [
                sum(s["evaluations"] for s in each["stages"] if s["name"] == "pairs of chains")
                / each["evaluations"]
                for each, _ in bounds
            ]
            rows.append(
                {
                    "package": records.LABELS[backend],
                    "reach of every mode": kind,
                    "fits": len(own),
                    "with a bound": len(bounds),
                    "below the distance": sum(is_below(each, bound) for each, bound in bounds),
                    "median bound": f"{np.median([bound for _, bound in bounds]):.3f}",
                    "share of evaluations, nine of ten below": f"{np.quantile(costs, 0.9):.2f}",
                }
            )
    return records.markdown_table(rows)
