"""What a fit knows so far, from which it decides how far to climb and what its draws are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ppl_ext.chains.coupling import Coupled
from ppl_ext.fit.verdict.labels import Orders


@dataclass(frozen=True)
class Program:
    """What is known before the first step.

    Attributes
    ----------
    dim : int
    is_whole : bool
        Whether every evaluation takes all rows.
    seconds_per_evaluation : float
    seconds_with_all_rows : float
        Likewise, estimated where evaluations take a batch.
    has_engine : bool
        Whether an engine can fit it by minibatches.
    rounding : float
        Nats: machine epsilon times the size of log densities near the mode.
    grain : float
        Machine epsilon times the size of positions, in standard deviations.
    strain : float
        Factor by which widths of sites of latent scale still change with their scales, where they
        are written partly non-centred.
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
    """What the search found: separate modes, and the share of the last paths that found more.

    ``exchanged`` names sites whose entries change places from one mode to another, and where they
    do on the first axis; ``orders`` tells which orders of their labels draws have. ``alike`` names
    the sites of labels whose exchange leaves the density as it is, and after them the site that
    orders the labels: modes that differ by them count once, and draws have them in random orders.
    ``cut`` tells that the budget ended before the search did. ``paths`` are those that were
    followed, ``from_prior`` those of them that started at draws of the prior, and ``no_prior`` is
    why there are none of these. ``share_errors`` are standard errors of the shares, where these are
    by importance weights. ``left`` tells that the last chains still met another mode.
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
    """Importance ratios of the approximation: Pareto k-hat, and the weights' effective share.

    ``undefined`` is the share of draws at which the log density is not a number.
    """

    khat: float
    share: float
    undefined: float = 0.0


@dataclass(frozen=True)
class Chained:
    """Figures of chains, with the site that is worst.

    ``deviation_error`` is the standard error of the least certain standard deviation as a share of
    it, and ``deviation_number`` the number that has it; ``heavy`` the sites whose tails are too
    heavy for one, ``endless`` those whose draws come near the largest numbers there are,
    and ``improper`` those whose prior has no normaliser. ``has_other_form`` tells whether the worst
    site may be written non-centred and is not, and ``draws`` how many all chains have. All these
    are of the sites as written; ``coordinate_r_hat`` is the largest of the unconstrained
    coordinates.
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
    """What an engine did: its name and steps, and whether its figures came to rest.

    ``moving`` is how far they still moved, in standard deviations and in words.
    """

    name: str
    steps: int
    settled: bool
    moving: float = 0.0
    figure: str = ""


@dataclass(frozen=True)
class Wanted:
    """What the user asks for: effective draws, whether chains may run, seconds, whether the draws
    are to be those of an engine, and an error of standard deviations, as a share of them."""

    target_ess: float
    exact: bool
    seconds: float
    engine: bool = False
    deviation_error: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All figures so far.

    ``dropped`` tells which ways to write the program were, and why; ``left`` is what is left of the
    budget, in evaluations. ``coupled`` are pairs of chains, ``rested`` tells that the chains had
    done what was asked before they went on. ``flat`` are sites with an improper prior along which
    the density does not fall far out.
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
