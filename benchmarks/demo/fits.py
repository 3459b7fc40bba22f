"""What one fit of the demonstration leaves behind, and how it is judged against the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.demo.problems import Draws, Problem
from benchmarks.trust.judge import judge as judge_draws


@dataclass
class Fit:
    """Result of one method on one problem.

    Parameters
    ----------
    problem, backend, method : str
    draws : mapping of str to array
        Draws under the site names of the NumPyro model, draws first.
    seconds : float
        Wall-clock seconds of the fit, compilation included.
    gradients : float
        Gradients of the log density over all rows that the fit evaluated (a minibatch of B of N
        rows counts B/N).
    losses : array
        Trace of the method's own loss; empty for NUTS.
    inference_data : callable, optional
        Makes the ArviZ object of the fit, which is no part of the seconds, where the method is one
        of this project's.
    verdict : object
        What ``fit`` says of its draws; None of other methods.
    """

    problem: str
    backend: str
    method: str
    draws: Draws
    seconds: float
    gradients: float
    losses: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    inference_data: Callable[[], Any] | None = None
    verdict: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Method and backend, for legends."""
        return f"{self.method} ({self.backend})"


def judge(problem: Problem, fit: Fit, reference: Fit) -> dict[str, float | bool]:
    """Figures of a fit: distance to the reference's moments and prediction of test rows.

    The error of the mean is in reference standard deviations (mean and worst over the compared
    quantities); of the standard deviations' ratios the median, smallest and largest are given, and
    of the Kolmogorov distances the largest. Right is what :mod:`benchmarks.trust.judge` says.
    """
    exact, found = problem.compared(reference.draws), problem.compared(fit.draws)
    error = np.abs(found.mean(0) - exact.mean(0)) / exact.std(0)
    ratio = found.std(0) / exact.std(0)
    judged = judge_draws(*({str(i): x for i, x in enumerate(each.T)} for each in (found, exact)))
    return {
        "mean error": float(error.mean()),
        "worst mean error": float(error.max()),
        "sd ratio": float(np.median(ratio)),
        "smallest sd ratio": float(ratio.min()),
        "largest sd ratio": float(ratio.max()),
        "Kolmogorov": math.inf if judged.kolmogorov is None else judged.kolmogorov.value,
        "right": judged.right,
        "test log likelihood": problem.test_log_likelihood(fit.draws),
        "seconds": fit.seconds,
        "gradients": fit.gradients,
    }
