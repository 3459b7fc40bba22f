"""A fit: draws of a program's posterior, with the verdict on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from ppl_ext import state_files
from ppl_ext.chains.convergence import convergence
from ppl_ext.chains.sampler import go_on
from ppl_ext.errors import ArgumentError
from ppl_ext.fit import policy
from ppl_ext.fit.ladder import Climbed, climb, staged, with_chains
from ppl_ext.fit.problem import Meter, Problem
from ppl_ext.fit.verdict import SiteFigures, Stage, Verdict
from ppl_ext.options import check_choice, check_count, check_number

#: Score evaluations that a fit may take unless told otherwise.
BUDGET = 300_000
#: Seconds likewise.
SECONDS = 600.0
#: Effective draws that are wanted unless told otherwise.
TARGET_ESS = 400

FIT_DOCUMENTATION = """
    The fit climbs only as far as it must. A search finds where the posterior has its mass, and
    Normals near its modes. Sites whose scale is latent are tried non-centred as well, by the
    host's own handlers. Draws of the Normals are corrected by importance weights. From these,
    Hamiltonian chains that leave the posterior exactly as it is run until they agree. What could
    not be reached is said by ``fit.verdict``, with reasons and advice.

    Parameters
    ----------
    $randomness
    model : callable
        $host program.
    *args, **kwargs
        Its arguments, with all rows.
    budget : int, optional
        Evaluations of the score at most, about; one for each position. Default: 300,000.
    seconds : float, optional
        Wall time at most, about. Default: 600.
    target_ess : float
        Effective draws that the worst coordinate must have.
    exact : bool
        Whether chains may run. Without them the best level is "corrected".
    guide : $guide, optional
        Fit this guide by ``ProximalScoreVI``. The draws are then the guide's, judged by chains
        where these can run.
    engine : $engine, optional
        Likewise an engine of this package with the same model, such as ``SVGD(model, optim)``,
        which runs until it has settled.
    progress_bar : bool
        Show what is done and what is found.

    Returns
    -------
    Fit
        ``draws``, equally weighted, and ``verdict``: "exact", "corrected", "approximate" or
        "not trusted".

    Raises
    ------
    ModelCheckError
        The model cannot be fitted, or no starting point has a finite density and score.
    ArgumentError
        An option or the arguments have no meaning for the model.

    References
    ----------
    The search: L. Zhang, B. Carpenter, A. Gelman and A. Vehtari, "Pathfinder: Parallel
    quasi-Newton variational inference" (2022). R-hat: A. Vehtari and others, "Rank-normalization,
    folding, and localization" (2021). Non-centred sites: M. Gorinova, D. Moore and M. Hoffman,
    "Automatic reparameterisation of probabilistic programs" (2020).
"""


class Fit:
    """Draws of a program's posterior, and what they are worth.

    Attributes
    ----------
    draws : dict of str to array
        Latent site to constrained values, equally weighted, first axis = draws.
    verdict : Verdict
        The level, the reasons, figures by site and the cost; ``print(fit.verdict)``.
    num_chains : int
        Chains that the draws are of, one after the other; 1 for independent draws.
    """

    def __init__(
        self,
        draws: dict[str, Any],
        verdict: Verdict,
        num_chains: int,
        climbed: Climbed | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        self.draws, self.verdict, self.num_chains = draws, verdict, num_chains
        self._climbed, self._generator = climbed, generator

    @classmethod
    def of(cls, climbed: Climbed, generator: np.random.Generator) -> Fit:
        """What a climb ended with."""
        positions = climbed.positions
        # Chain by chain, as the hosts' MCMC gives them.
        flat = positions.transpose(1, 0, 2).reshape(-1, positions.shape[2])
        draws = climbed.problem.values(flat)
        chains = positions.shape[1]
        correction = climbed.evidence.correction
        share = 1.0 if chains > 1 or correction is None else correction.share
        sites = {name: _figures(np.asarray(draws[name]), chains, share) for name in draws}
        verdict = replace(climbed.verdict, by_site=sites)
        return cls(draws, verdict, chains, climbed, generator)

    @property
    def history(self) -> tuple[Stage, ...]:
        """What was done, in order, and what it cost."""
        return self.verdict.cost

    @property
    def target(self) -> Any:
        """The log density of the program as it is written."""
        return self._whole("its program").problem.target

    def _whole(self, what: str) -> Climbed:
        if self._climbed is None:
            raise ArgumentError(
                f"Expected a fit with {what}, found one that was loaded: the file holds draws and "
                "verdict. Fit again."
            )
        return self._climbed

    def get_samples(self, *_: Any, num_samples: int | None = None, **__: Any) -> dict[str, Any]:
        """The draws; see ``draws``."""
        if num_samples is not None:
            raise ArgumentError(
                "Expected no num_samples for a fit, whose draws are made. fit.more(number) makes "
                "further ones."
            )
        return self.draws

    def arviz_attributes(self) -> dict[str, Any]:
        """Attributes for ArviZ: the kind of draws, and the verdict."""
        kind = "MCMC draws" if self.num_chains > 1 else "independent draws"
        return {"sample_kind": kind, **self.verdict.attributes()}

    def more(self, num_draws: int) -> Fit:
        """So many further draws of the chains, and the verdict on all; returns the fit itself.

        Raises
        ------
        ArgumentError
            The fit has no chains to go on with.
        """
        check_count("num_draws", num_draws)
        climbed = self._whole("chains")
        if climbed.sampled is None or self._generator is None:
            raise ArgumentError(
                f"Expected a fit with chains, found one that ended {self.verdict.level!r} without. "
                "Fit again with exact=True and a larger budget."
            )
        meter = Meter(BUDGET, SECONDS)
        climbed.sampled.kernel.evaluate = meter.of(climbed.problem.evaluate)
        longer = go_on(climbed.sampled, -(-num_draws // self.num_chains), self._generator)
        climbed = with_chains(climbed, longer)
        climbed.stages.append(Stage("more chains", meter.evaluations, meter.elapsed))
        vars(self).update(vars(Fit.of(climbed, self._generator)))
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save draws, verdict and history; the file is complete or absent.

        The program is not in it: :func:`load_fit` gives the draws and the verdict back.
        """
        state = {
            "draws": {name: np.asarray(value) for name, value in self.draws.items()},
            "num_chains": self.num_chains,
            "verdict": self.verdict.as_json(),
        }
        header = {"engine": "fit", "settings": {}, "tuning": {}, "sites": list(self.draws)}
        state_files.save(os.fspath(path), header, state, lambda array: (np.asarray(array), {}))

    def __repr__(self) -> str:
        number = len(next(iter(self.draws.values())))
        return f"Fit({number} draws, {self.verdict.level})"


def load_fit(path: str | os.PathLike[str]) -> Fit:
    """Draws and verdict of a fit that was saved, the draws as NumPy's arrays.

    Raises
    ------
    ArgumentError
        The file is no saved fit, or damaged.
    """
    _, state = state_files.load(os.fspath(path), "fit", lambda array, _: array)
    with state_files.reading(path):
        verdict = Verdict.from_json(state["verdict"])
        return Fit(dict(state["draws"]), verdict, int(state["num_chains"]))


def _figures(draws: np.ndarray, chains: int, share: float) -> SiteFigures:
    """What the draws of a site are worth; a share of them where they are independent."""
    number = len(draws)
    if chains == 1:
        return SiteFigures(share * number, share * number, float("nan"))
    found = convergence(draws.reshape(chains, number // chains, -1).transpose(1, 0, 2))
    return SiteFigures(
        float(found.ess_bulk.min()),
        float(found.ess_tail.min()),
        float(found.r_hat.max()),
        bool(found.is_heavy.any()),
    )


def fit(
    problems: Callable[[], Sequence[Problem]],
    generator: np.random.Generator,
    *,
    budget: int | None,
    seconds: float | None,
    target_ess: float,
    exact: bool,
    progress_bar: bool,
    compare: Callable[[Mapping[str, Any], Fit], Verdict] | None = None,
) -> Fit:
    """Fit what ``problems`` makes of a program; see the packages' ``fit``.

    Where ``compare`` is given, the draws are to be those of the problems' engine, on which it
    gives the verdict by the draws of a fit with chains.
    """
    check_count("budget", budget, optional=True)
    check_number("seconds", seconds, optional=True)
    check_number("target_ess", target_ess)
    for name, flag in (("exact", exact), ("progress_bar", progress_bar)):
        check_choice(name, flag, (True, False))
    with tqdm(desc="fit", unit=" scores", disable=not progress_bar) as bar:
        meter = Meter(budget or BUDGET, seconds or SECONDS, bar)
        wanted = policy.Wanted(float(target_ess), exact, meter.seconds, compare is not None)
        ways = problems()
        found = Fit.of(climb(ways, generator, wanted, meter), generator)
        if compare is not None and found.num_chains > 1:
            found = _of_engine(ways[0], found, meter, compare)
        bar.set_description(found.verdict.level)
    return found


def _of_engine(
    problem: Problem,
    reference: Fit,
    meter: Meter,
    compare: Callable[[Mapping[str, Any], Fit], Verdict],
) -> Fit:
    """Draws of a problem's engine, judged by those of chains."""
    climbed = reference._whole("chains")
    with staged(climbed.stages, meter, "engine") as notes:
        assert problem.approximate is not None
        given = problem.approximate(None, meter)
        notes.append(given.name)
    draws = problem.values(given.positions)
    verdict = compare(draws, reference)
    engine = policy.Engine(given.name, given.steps, given.settled)
    told = policy.words_of(engine)
    climbed = replace(climbed, problem=problem, positions=given.positions[:, None], sampled=None)
    sites = {name: _figures(np.asarray(draws[name]), 1, 1.0) for name in draws}
    verdict = replace(
        verdict, reasons=(told, *verdict.reasons), by_site=sites, cost=tuple(climbed.stages)
    )
    return Fit(draws, verdict, 1, climbed)
