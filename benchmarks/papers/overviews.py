"""Claims of two overviews: P. Ursulean, "Uncertainty via stochastic variational inference", and
W. Chen, B. Li, R. Zhang and Y. Li, "Bayesian computation in deep learning".

Neither has a table of results. These are the figures and statements that pages of this project
quote, and those that a figure of the overviews makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.papers import claims
from benchmarks.papers.claims import Beats, Below, Claim, Reading, Values
from benchmarks.papers.readings import bnn, row_noise
from benchmarks.records import Record


def _shares(method: str) -> Reading:
    """Share of the far mode in the draws of each chain."""

    def of(runs: Sequence[Record]) -> Values:
        own = [run for run in runs if (run.benchmark, run.method) == ("sgmcmc modes", method)]
        return dict(enumerate(own[-1].figures["share"])) if own else {}

    return Reading(f"`{method}`", of)


def _deviations(method: str) -> Reading:
    """How far the standard deviations of chains are off, in logarithms, by the step size."""

    def of(runs: Sequence[Record]) -> Values:
        own = [run for run in runs if (run.benchmark, run.method) == ("sgmcmc bias", method)]
        own.sort(key=lambda run: float(run.settings["step_size"]))
        return {number: abs(run.figures["ratio"] - 1.0) for number, run in enumerate(own)}

    return Reading(method, of)


def _calibration(way: str) -> Reading:
    """Calibration error by the set, at the mode, or linear there with draws of the weights."""

    def of(runs: Sequence[Record]) -> Values:
        own = [run for run in runs if run.benchmark == "linearized" and not run.failed]
        return {number: run.figures[f"{way}: calibration error"] for number, run in enumerate(own)}

    return Reading({"mode": "the mode", "linearised": "`LinearizedPredictive`"}[way], of)


NETWORKS = ("yacht", "energy", "concrete", "wine_red")
OVERVIEW: list[Claim] = [
    *(
        Claim(
            "Fig. 16, Flipout",
            f"variance of gradients ({figure}) lower with `flipout` than without",
            "a curve of the training error",
            Below(row_noise("flipout", figure), 1.0),
            "row-noise",
            "Batches of 128; how fast a training goes is not measured.",
        )
        for figure in ("means", "scales")
    ),
    Claim(
        "Fig. 15, calibration",
        "calibration error of a Bayesian network lower than that of its mode",
        "a picture",
        Beats(_calibration("linearised"), (_calibration("mode"),)),
        "linearized",
        "By ten sets, not by seeds; the weights' posterior is a Laplace approximation.",
    ),
    Claim(
        "Fig. 17, flows",
        "the more maps, the nearer a flow is to its target",
        "a picture",
        why="The engines fit flows; how their number matters is not measured.",
    ),
    Claim(
        "Fig. 18, hierarchies",
        "groups of latents give images without blur",
        "pictures",
        why="Images of this size need an accelerator; a network with two levels is an example.",
    ),
]
SURVEY: list[Claim] = [
    Claim(
        "Section 2.1, minibatches",
        "standard deviations of SGLD's draws nearer to right with a control variate",
        "",
        Beats(_deviations("control variate"), (_deviations("minibatch"),), log=True),
        "sgmcmc --parts bias",
        "Distance of the ratio to NUTS from 1, by three step sizes.",
    ),
    Claim(
        "Fig. 2, cyclical steps",
        "chains with cyclical steps find a far mode that SGLD does not",
        "a picture",
        Beats(_shares("CyclicalSGLD"), (_shares("SGLD"),), larger=True),
        "sgmcmc --parts modes",
        "Share of the far mode in the draws, by ten chains of one run.",
    ),
    *(
        Claim(
            f"Section 2.1, SGLD, {name.removesuffix('_red')}",
            "test NLL of chains of SGLD lower than that of mean-field variational inference",
            "",
            Beats(bnn(name, "SGLD"), (bnn(name, "MFVI"),)),
            f"bnn --sets {name} --splits 5 --methods SGLD MFVI",
        )
        for name in NETWORKS
    ),
    Claim(
        "Fig. 3, alpha divergences",
        "a factorised Normal covers more of a correlated one the smaller alpha is",
        "a picture",
        why="An objective of the hosts (Pyro's Renyi ELBO), not of this project.",
    ),
]


def overview(runs: Iterable[Record]) -> str:
    """The first overview's figures."""
    return claims.table(OVERVIEW, runs)


def survey(runs: Iterable[Record]) -> str:
    """The second overview's statements."""
    return claims.table(SURVEY, runs)
