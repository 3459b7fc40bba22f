"""What a fit knows so far, from which it decides how far to climb and what its draws are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ppl_ext.chains.coupling import Coupled
from ppl_ext.fit.verdict.labels import Orders


@dataclass(frozen=True)
class Program:
    """What is known of a program at its start, before anything is drawn.

    Attributes
    ----------
    dim : int
        Unconstrained parameters.
    is_whole : bool
        Whether every evaluation takes all rows.
    seconds_per_evaluation : float
    rounding : float
        Nats by which rounding changes the log density: machine epsilon times its size near the
        mode.
    grain : float
        Distance of neighbouring numbers in standard deviations: machine epsilon times the size of
        positions there.
    seconds_with_all_rows : float
        Of an evaluation, estimated where evaluations take a batch.
    has_engine : bool
        Whether an engine can fit it by minibatches.
    strain : float
        How much parts of the posterior may be lacking in which a latent scale is near zero, as a
        factor: above 3.5 chains have to agree closely. Infinite where sites are written partly
        non-centred, unless a mixture along scales, whose weights are reliable, has draws there.
    far_out : int
        Evaluations that tell whether the density falls far out, where a prior is improper.
    """

    dim: int
    is_whole: bool
    seconds_per_evaluation: float
    rounding: float
    grain: float = 0.0
    seconds_with_all_rows: float = 0.0
    has_engine: bool = True
    strain: float = 1.0
    far_out: int = 0


@dataclass(frozen=True)
class Modes:
    """What the search for modes found.

    Attributes
    ----------
    number : int
        Modes that are separate. Those that differ by labels that can be exchanged count once.
    last_new : float
        Share of the last paths that found new ones.
    shares : tuple of float
        Of the mass, by mode.
    exchanged : tuple
        Sites whose entries change places from one mode to another, and the places on their first
        axis where they do.
    orders : Orders
        Which orders of these labels the draws have.
    alike : tuple
        Sites of labels whose exchange leaves the density as it is, each time with the site that
        orders them. Draws have such labels in random order.
    cut : bool
        Whether the budget ended before the search did.
    paths, from_prior : int
        Paths that were followed, and those of them that started at draws of the prior.
    no_prior : str
        Why there are no draws of the prior; empty where there are.
    left : bool
        Whether the last chains still met a mode that none of them started from.
    share_errors : tuple of float
        Standard errors of the shares, where these are by importance weights.
    """

    number: int
    last_new: float
    shares: tuple[float, ...]
    exchanged: tuple[tuple[str, tuple[int, ...]], ...] = ()
    orders: Orders = field(default_factory=Orders)
    alike: tuple[tuple[tuple[str, ...], str], ...] = ()
    cut: bool = False
    paths: int = 0
    from_prior: int = 0
    no_prior: str = ""
    left: bool = False
    share_errors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Correction:
    """Figures of the importance ratios at draws of an approximation.

    Attributes
    ----------
    khat : float
        Pareto k-hat.
    share : float
        Effective share of the draws that the weights leave.
    undefined : float
        Share of the draws at which the log density is not a number.
    given : bool
        Whether draws are of hyperparameters, and of Normals given these.
    undefined_near : float
        The same share of draws where the approximation is as dense as where half of the mass is.
    """

    khat: float
    share: float
    undefined: float = 0.0
    given: bool = False
    undefined_near: float = 0.0


@dataclass(frozen=True)
class Chained:
    """Figures of chains, of the sites as written unless said otherwise.

    Attributes
    ----------
    r_hat : float
        The largest.
    ess_bulk, ess_tail : float
        The smallest effective numbers of draws, of the middle and of the tails.
    deviation_error : float
        Standard error of the least certain standard deviation, as a share of it.
    heavy : tuple of str
        Sites whose tails are too heavy for such an error.
    divergent : float
        Share of trajectories that diverged.
    stuck : float
        Share of chains that hardly ever moved.
    is_adrift : bool
        Whether chains still move away from where they started.
    worst_site : str
        The site with the largest R-hat, or, where chains agree, with the fewest effective draws.
    endless : tuple of str
        Sites whose draws come near the largest numbers that there are.
    saturated : tuple of str
        Sites with draws where the numbers of this precision end, next to 0 or to 1.
    has_other_form : bool
        Whether the worst site may be written non-centred and is not.
    coordinate_r_hat, coordinate_site : float, str
        The largest R-hat of the unconstrained coordinates, and the site of that coordinate.
    improper : tuple of str
        Sites whose prior has no normaliser.
    draws : int
        Of all chains.
    deviation_number : str
        The number whose standard deviation is least certain.
    """

    r_hat: float
    ess_bulk: float
    ess_tail: float
    deviation_error: float
    heavy: tuple[str, ...]
    divergent: float
    stuck: float
    is_adrift: bool
    worst_site: str
    endless: tuple[str, ...] = ()
    saturated: tuple[str, ...] = ()
    has_other_form: bool = False
    coordinate_r_hat: float = 1.0
    coordinate_site: str = ""
    improper: tuple[str, ...] = ()
    draws: int = 0
    deviation_number: str = ""

    @property
    def words(self) -> str:
        """What is least certain, and how many of the draws of all chains count there."""
        of_draws = f" of {self.draws:,} draws" if self.draws else ""
        return (
            f"Least certain is '{self.worst_site}': R-hat {self.r_hat:.3f}, ESS "
            f"{self.ess_bulk:,.0f}{of_draws} (tails {self.ess_tail:,.0f})."
        )


@dataclass(frozen=True)
class Engine:
    """What an engine did.

    Attributes
    ----------
    name : str
    steps : int
    settled : bool
        Whether its figures came to rest.
    moving : float
        How far they still moved, in standard deviations.
    figure : str
        The same in words.
    """

    name: str
    steps: int
    settled: bool
    moving: float = 0.0
    figure: str = ""


@dataclass(frozen=True)
class Wanted:
    """What the user asks for.

    Attributes
    ----------
    target_ess : float
        Effective draws.
    exact : bool
        Whether chains may run.
    seconds : float
    engine : bool
        Whether the draws are to be those of an engine.
    deviation_error : float, optional
        Standard error of standard deviations, as a share of them, for which chains go on.
    """

    target_ess: float
    exact: bool
    seconds: float
    engine: bool = False
    deviation_error: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All that is known so far. What has not been done yet is None.

    Attributes
    ----------
    program : Program
    wanted : Wanted
    modes : Modes, optional
    correction : Correction, optional
    chains : Chained, optional
    engine : Engine, optional
    dropped : tuple of str
        Ways to write the program that were left out, and why.
    left : float
        What is left of the budget, in evaluations.
    coupled : Coupled, optional
        Pairs of chains.
    rested : bool
        Whether the chains had done what was asked before they went on.
    flat : tuple of str
        Sites with an improper prior along which the density does not fall far out.
    neck : float
        Factor by which curvatures of sites of latent scale change over the draws, where these sites
        are as written and might be in another form.
    """

    program: Program
    wanted: Wanted
    modes: Modes | None = None
    correction: Correction | None = None
    chains: Chained | None = None
    engine: Engine | None = None
    dropped: tuple[str, ...] = ()
    left: float = math.inf
    coupled: Coupled | None = None
    rested: bool = False
    flat: tuple[str, ...] = ()
    neck: float = 1.0
