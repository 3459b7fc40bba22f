"""What the chains of a network are worth, by their outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ppl_ext.fit.ladder.by_chains import CHAINS
from ppl_ext.fit.networks.outputs import Calibration, Columns, Outputs, finite_columns
from ppl_ext.fit.networks.run import Run, flat
from ppl_ext.fit.verdict import agreement, facts, levels
from ppl_ext.fit.verdict.figures import site_figures
from ppl_ext.fit.verdict.verdict import Level, Verdict
from ppl_ext.microcanonical.tuning import DOUBTFUL_VARIANCE, ENERGY_VARIANCE, HEAT
from ppl_ext.statistics.convergence import Convergence, convergence

#: Share of the effective draws that are asked for which the least certain output has to have where
#: chains are not adjusted. 200 of 400 leave a standard deviation uncertain by 5 %, and outputs of
#: few inputs are all off together; with a hundred one fit of nine was off by a tenth.
SHARE_OF_DRAWS = 0.5
#: R-hat of outputs below which chains are near enough to go on as adjusted ones, and up to which
#: those that are not adjusted are believed.
NEAR = 1.1
#: Acceptance up to which an adjusted chain hardly moves.
REFUSED = 0.3
#: Draws of each chain by which outputs are judged where chains move by minibatches, since the
#: predictions of many rows take long; more where more effective draws are asked for.
MOST_JUDGED = 25
#: How many times its bound the noise of minibatches may be: the warm-up's estimate has an error.
MOST_HEAT = 2.0
#: Error of standard deviations of Normals, as a share of them, at the variance of the energy that
#: steps are tuned to; it grows as the square of the step, the variance as its sixth power.
BIAS = 0.02


@dataclass(frozen=True)
class Figures:
    """How far chains agree in their outputs."""

    columns: Columns
    found: Convergence
    chained: facts.Chained
    #: On outputs that are no numbers.
    told: list[str]

    @classmethod
    def of(cls, outputs: Outputs, run: Run, wanted: facts.Wanted) -> Figures:
        """Of what is kept of chains."""
        draws = run.draws
        if run.rows.minibatches is not None:
            most = max(MOST_JUDGED, math.ceil(wanted.target_ess / CHAINS))
            draws = draws[-1 :: -max(1, -(-len(draws) // most))][::-1]
        every = outputs.columns(flat(draws))
        columns, told = finite_columns(every)
        columns = columns or {name: np.nan_to_num(each) for name, each in every.items()}
        joined = np.concatenate(list(columns.values()), 1)
        found = convergence(joined.reshape(*draws.shape[1::-1], -1).transpose(1, 0, 2))
        names = [name for name, each in columns.items() for _ in range(each.shape[1])]
        r_hat = float(found.r_hat.max())
        worst = found.r_hat.argmax() if r_hat > agreement.R_HAT else found.ess_bulk.argmin()
        chained = facts.Chained(
            r_hat,
            float(found.ess_bulk.min()),
            float(found.ess_tail.min()),
            found.worst_deviation,
            (),
            run.diverged / max(1, run.made * draws.shape[1]),
            0.0,
            found.is_adrift,
            names[int(worst)],
            draws=draws.shape[0] * draws.shape[1],
            deviation_number=names[found.worst_deviation_at],
        )
        return cls(columns, found, chained, told)

    @property
    def r_hat(self) -> float:
        """The largest."""
        return self.chained.r_hat


def against_chains(found: facts.Chained, run: Run, wanted: facts.Wanted) -> list[str]:
    """What speaks against chains; of those that are not adjusted less is asked."""
    if run.moves.adjusted:
        return agreement.of_chains(found, wanted)
    less = replace(wanted, target_ess=SHARE_OF_DRAWS * wanted.target_ess)
    return agreement.of_chains(found, less, most_r_hat=NEAR)


def rounding_of(run: Run) -> float:
    """Nats by which rounding changes the log densities where chains are."""
    return run.moves.epsilon * float(np.abs(run.dynamics.log_density).max())


def judged(
    outputs: Outputs,
    run: Run,
    figures: Figures,
    calibration: Calibration,
    wanted: facts.Wanted,
    told: list[str],
) -> Verdict:
    """What chains are worth, by their outputs."""
    chained = figures.chained
    program = facts.Program(outputs.problem.dim, True, 0.0, rounding_of(run))
    against = [*against_chains(chained, run, wanted), *levels.of_rounding(program), *figures.told]
    reasons = [f"Predictions are judged, since weights have no identity. {chained.words}"]
    level: Level = "exact"
    quality = run.quality
    if run.moves.adjusted:
        line = f"Moves were accepted with probability {quality.min():.2f} to {quality.max():.2f}."
        if not quality.min() > REFUSED:
            against.append(f"{line} A chain hardly moves. Give a larger budget= or seconds=.")
        else:
            reasons.append(line)
    else:
        level, worst = "approximate", float(quality.max())
        bias = BIAS * (worst / ENERGY_VARIANCE) ** (1.0 / 3.0)
        line = (
            "No step was refused (unadjusted chains): the energy's error has a variance of "
            f"{worst:.2g} for each dimension, with which standard deviations of Normals are "
            f"{bias:.1%} off."
        )
        if not worst < DOUBTFUL_VARIANCE:
            against.append(f"{line} Steps are too long. Give a larger budget= or seconds=.")
        else:
            reasons.append(line)
        if run.rows.minibatches is not None:
            heat = float(run.moves.heat(run.dynamics))
            line = (
                f"The noise of minibatches of {run.rows.minibatches.rows:,} rows makes variances "
                f"of weights up to {1.0 + heat:.2g} times the posterior's where it is largest."
            )
            if heat > MOST_HEAT * HEAT:
                against.append(f"{line} Let the model take larger minibatches.")
            else:
                reasons.append(line)
    if calibration.told:
        is_bad = not (calibration.is_good or math.isnan(calibration.error) or level == "exact")
        (against if is_bad else reasons).append(calibration.told)
    found: Level = "not trusted" if against else level
    number = run.draws.shape[1]
    verdict = Verdict(
        found,
        (*against, *reasons, *told),
        {name: site_figures(name, each, number, 1.0) for name, each in figures.columns.items()},
        confirmed=found == "approximate" and calibration.is_good,
        num_chains=number,
        of_outputs=True,
    )
    return outputs.problem.observed.judged(verdict)
