"""``compare``: fits of several programs to the same data, by their evidence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ppl_ext.arguments import named_arrays
from ppl_ext.errors import ArgumentError, DataWarning
from ppl_ext.fit.after.evidence import LogEvidence
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.problem.views import Views
from ppl_ext.options import described
from ppl_ext.target.on_host import on_host

if TYPE_CHECKING:
    import pandas


def compare(
    fits: Mapping[str, Fit | LogEvidence] | None = None, /, *others: Any, **named: Any
) -> pandas.DataFrame:
    """A table of fits by the evidence of their programs, the best first.

    All programs must be of the same observations. A :class:`~ppl_ext.errors.DataWarning` comes
    where no array is an argument of all; else the table cannot tell. Evidence depends on priors, as
    wide as they are: ArviZ's ``compare`` of predictions (LOO) does so much less.

    Parameters
    ----------
    fits : mapping of str to Fit or LogEvidence
        Names of programs to their fits, or to what ``fit.log_evidence`` was.

    Returns
    -------
    pandas.DataFrame
        One row for each name: ``log_evidence`` and its standard ``error``, in nats, the
        ``difference`` to the best, the ``probability`` of the program among these where all were
        alike probable before, and the ``reason`` where a fit has no evidence; its figures are NaN.

    Raises
    ------
    ArgumentError
        These are no fits by name, or one was loaded without its program.

    Examples
    --------
    >>> from ppl_ext.fit.after.evidence import LogEvidence
    >>> table = compare({"small": LogEvidence(-42.5, 0.01), "large": LogEvidence(-40.3, 0.01)})
    >>> print(table.round(2).drop(columns="reason"))
           log_evidence  error  difference  probability
    large         -40.3   0.01         0.0          0.9
    small         -42.5   0.01        -2.2          0.1
    """
    if (
        not isinstance(fits, Mapping)
        or not fits
        or not all(isinstance(each, Fit | LogEvidence) for each in fits.values())
        or others
        or named
    ):
        more = f" and {len(others) + len(named)} more" if others or named else ""
        raise ArgumentError(
            'Expected a mapping of names to fits, such as {"small": fit_of_small, "large": '
            f"fit_of_large}}, found {described(fits)}{more}."
        )
    _warn_of_other_data(fits)
    import pandas  # which ArviZ needs as well; it takes half a second

    found = {
        name: each if isinstance(each, LogEvidence) else each.log_evidence
        for name, each in fits.items()
    }
    values = np.array([_or_nan(each.value) for each in found.values()])
    known = np.isfinite(values)
    best = values[known].max() if known.any() else math.nan
    weights = np.where(known, np.exp(np.where(known, values, best) - best), math.nan)
    columns: dict[str, Any] = {
        "log_evidence": values,
        "error": [_or_nan(each.error) for each in found.values()],
        "difference": values - best,
        "probability": weights / np.nansum(weights),
        "reason": [each.reason for each in found.values()],
    }
    table = pandas.DataFrame(columns, index=list(found))
    return table.sort_values("log_evidence", ascending=False, kind="stable")


def _warn_of_other_data(fits: Mapping[str, Fit | LogEvidence]) -> None:
    """Say that fits have no data in common."""
    views = [each.views for each in fits.values() if isinstance(each, Fit)]
    found = [_arrays(each) for each in views if each is not None]
    if found and all(found) and not set.intersection(*found):
        warnings.warn(
            "No array is an argument of all these fits, so that they may be of different "
            "observations: their evidence cannot be compared then. Fit all to the same.",
            DataWarning,
            stacklevel=3,
        )


def _arrays(views: Views) -> set[bytes]:
    """Arrays of more than one number among a fit's arguments, by value."""
    arrays = (each for _, each in named_arrays(None, views.args, views.kwargs))
    plain = [np.asarray(on_host(each)) for each in arrays]
    return {
        np.ravel(each).astype(float).tobytes()
        for each in plain
        if each.size > 1 and each.dtype.kind in "biuf"
    }


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
