"""The engines that are compared, the hosts' rivals among them, and what a run is allowed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ppl_ext.curvature.program_curvature import GaussNewton, as_curvature
from ppl_ext.score_matching.options import GradientSteps
from ppl_ext.start.start import Start

Floats = NDArray[np.float64]
Family = Literal["host", "guide", "particles", "chains", "MCMC", "peer", "fit", "own"]
GuideName = Literal["diagonal", "full", "mixture", "Laplace"]

#: Particles of SVGD and SVN: enough for standard deviations of a dozen of correlated parameters.
PARTICLES = 100
#: Chains of stochastic gradient MCMC, and the share of their draws that is warm-up.
CHAINS, WARM_UP_SHARE = 10, 0.25
#: Standard deviation of guides at the host's start, in unconstrained space, and the greatest
#: distance from 0 of their uniform random points in every coordinate.
INITIAL_SCALE, RADIUS = 0.1, 1.0
#: Steps of SVN that one curvature serves, which takes most of a step's derivatives and changes
#: slowly.
CURVATURE_EVERY = 5
#: Components of mixtures.
COMPONENTS = 3
#: Draws that figures of guides are made of.
DRAWS = 2_048
#: Dimensions above which guides with a dense covariance are left out: each draw takes D^2
#: operations and each update D^3.
DENSE_LIMIT = 300
#: Score evaluations of the first look along a run; every later one is at twice as many.
FIRST_LOOK = 50


#: Families that take exact scores alone, and look for a start of their own.
EXACT: tuple[Family, ...] = ("MCMC", "peer", "fit")


@dataclass(frozen=True)
class Method:
    """One way of fitting.

    Attributes
    ----------
    engine : str
        Class of the engine in both packages, or of the host; of a user's own ``module:name``.
    family : str
        "host" is variational inference of the host's own, "guide" an engine of ours with a guide,
        "chains" a kernel of ours, "MCMC" a sampler of others, "peer" one that has the recipe, and
        the length, of the benchmark of trust, "fit" the function of that name, "own" an engine of a
        user.
    guide : str, optional
        Family of the guide.
    options : dict
        Options of the engine.
    rates : tuple of float
        First step sizes of Adam, or step sizes of chains, in standard deviations. That with the
        highest bound in the end is taken, or with the lowest Stein discrepancy where there is no
        bound.
    cost : float
        Score evaluations of one gradient that the engine takes; :func:`cost_of` has SVN's.
    backends : tuple of str
        Packages on whose programs it runs.
    """

    engine: str
    family: Family
    guide: GuideName | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float | None, ...] = (None,)
    cost: float = 1.0
    backends: tuple[str, ...] = ("numpyro", "pyro")

    @property
    def ours(self) -> bool:
        """Whether the engine is one of this project."""
        return self.family in ("guide", "particles", "chains", "fit")

    @property
    def dense(self) -> bool:
        """Whether every step takes a covariance of all dimensions."""
        return self.guide in ("full", "mixture")


#: Step sizes of Adam, of which the best in hindsight is taken.
RATES = (0.1, 0.01)

METHODS: dict[str, Method] = {
    "fit": Method("fit", "fit"),
    "ADVI, diagonal": Method("SVI", "host", "diagonal", rates=RATES),
    "ADVI, full": Method("SVI", "host", "full", rates=RATES),
    "ProximalScoreVI, diagonal": Method("ProximalScoreVI", "guide", "diagonal"),
    "ProximalScoreVI, full": Method("ProximalScoreVI", "guide", "full"),
    "ProximalScoreVI, mixture": Method("ProximalScoreVI", "guide", "mixture"),
    # The paper's settings in its appendix B.
    "ProximalScoreVI, gradient": Method(
        "ProximalScoreVI",
        "guide",
        "full",
        {"solver": GradientSteps(num_samples=1, num_inner_steps=2)},
    ),
    "GSM": Method("GSM", "guide", "full", {"num_samples": 2}),
    "BaM": Method("BaM", "guide", "full", {"num_samples": 2}),
    "FisherVI": Method("FisherVI", "guide", "full", cost=2.0),
    "SVGD": Method("SVGD", "particles", rates=RATES),
    "SVN": Method("SVN", "particles", options={"curvature": GaussNewton(every=CURVATURE_EVERY)}),
    "SVN, block diagonal": Method(
        "SVN",
        "particles",
        options={"curvature": GaussNewton(every=CURVATURE_EVERY), "system": "block_diagonal"},
    ),
    "Laplace": Method("SVI", "host", "Laplace", rates=RATES),
    "SGHMC": Method("SGHMC", "chains", options={"friction": 1.0}, rates=(0.5, 0.25)),
    "NUTS": Method("NUTS", "MCMC"),
    # From Python it evaluates functions of NumPy's arrays, which Pyro's programs would slow down.
    "nutpie": Method("nutpie", "MCMC", backends=("numpyro",)),
    "nutpie-low-rank": Method("nutpie-low-rank", "peer", backends=("numpyro",)),
    "window-nuts": Method("window-nuts", "peer", backends=("numpyro",)),
    "mams": Method("mams", "peer", backends=("numpyro",)),
    "pathfinder": Method("pathfinder", "peer", backends=("numpyro",)),
}
#: Methods of the quick budget: one of each kind.
QUICK = ("fit", "ADVI, full", "ProximalScoreVI, full", "SVN", "NUTS")
#: Methods of appendix B of the paper.
APPENDIX = ("ADVI, full", "ProximalScoreVI, full", "ProximalScoreVI, gradient", "GSM", "BaM")
APPENDIX_POSTERIORS = (
    "diamonds-diamonds",
    "arK-arK",
    "gp_pois_regr-gp_pois_regr",
    "low_dim_gauss_mix-low_dim_gauss_mix",
)


def own_engine(name: str) -> Callable[..., Any]:
    """What ``module:name`` says: takes a program and options, returns an engine.

    Raises
    ------
    ValueError
        There is no such module, or nothing of that name in it that can be called.
    """
    module, colon, inside = name.partition(":")
    if not (module and colon and inside):
        raise ValueError(f"expected module:name, found {name!r}")
    try:
        found = getattr(importlib.import_module(module), inside, None)
    except ImportError as error:
        raise ValueError(f"expected a module that can be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"expected a class or function {inside!r} in {module}, found {found!r}")
    made: Callable[..., Any] = found
    return made


@dataclass(frozen=True)
class Draws:
    """Draws of a fit.

    Attributes
    ----------
    z : array (n, D)
        In unconstrained space.
    log_q : array (n,), optional
        Log density of the guide there; None for particles and chains.
    before : int, optional
        Score evaluations before the first draw, where further ones bring further draws.
    chains : int
        That the draws are of, one after the other; 0 of draws that were resampled.
    """

    z: Floats
    log_q: Floats | None = None
    before: int | None = None
    chains: int = 1


#: Called along a run with the score evaluations so far, the seconds of the steps, and a function
#: from a number of draws to as many (particles and chains give what they have). True ends the run.
Look = Callable[[int, float, Callable[[int], Draws]], bool]


class Program(Protocol):
    """One posterior as a program of a backend, with plain arrays on the outside."""

    dim: int

    def log_density(self, z: Floats) -> Floats:
        """Log density (n,) at unconstrained positions (n, D), Jacobians included."""

    def value_and_score(self, z: Floats) -> tuple[Floats, Floats]:
        """Log density (n,) and its gradient (n, D)."""

    def parameters(self, z: Floats) -> dict[str, Floats]:
        """The posterior's parameters by name, each (n, ...), at unconstrained positions."""

    def positions(self, parameters: Mapping[str, Floats]) -> Floats | None:
        """Unconstrained positions of parameters; None where they do not determine these."""

    def start(self, seed: int) -> Start:
        """Where the library would start runs with this seed."""

    def coordinates(self, parameters: Collection[str]) -> list[int]:
        """Unconstrained coordinates of sites that are among these parameters themselves."""


class Fitter(Protocol):
    """One method on one program; runs with other seeds and step sizes share what is compiled."""

    def fit(self, seed: int, rate: float | None, start: Any, points: list[int], look: Look) -> None:
        """Run from a start to the last of ``points``, in score evaluations, and look at each.

        The evaluations of the start (:class:`~ppl_ext.start.start.Start`; None is the host's own
        starting point) are among them.

        A step that is not finite is skipped by our engines; a fit that is not finite shows in its
        figures.
        """


@dataclass(frozen=True)
class WholeFitter:
    """What ends by itself, and is looked at then.

    Attributes
    ----------
    run : callable
        From a seed to score evaluations and draws.
    """

    run: Callable[[int], tuple[int, Draws]]

    def fit(self, seed: int, rate: float | None, start: Any, points: list[int], look: Look) -> None:
        """See the protocol."""
        began = time.perf_counter()
        spent, drawn = self.run(seed)
        look(spent, time.perf_counter() - began, lambda _: drawn)


class Backend(Protocol):
    """What a backend's module offers."""

    def configure(self) -> None:
        """Double precision from here on."""

    def release(self) -> None:
        """Let go of what was compiled for programs that are done with."""

    def native(self, model_name: str, data: Mapping[str, Any]) -> Program:
        """The native program of a model."""

    def stan(self, model_name: str, program: str, data: Mapping[str, Any]) -> Program:
        """A Stan program of a model, by its file."""

    def fitter(self, program: Any, method: Method, budget: int, noise: float) -> Fitter:
        """A method on a program; ``noise`` is the level of the paper's equation 19."""


def sweeps_of(outputs_of_a_row: int, outputs_of_all: float, dim: int) -> int:
    """Derivatives of the whole program that the rows of a Gauss-Newton matrix take.

    Parameters
    ----------
    outputs_of_a_row : int
        Whitened outputs of one row of data, of sites that are differentiated row by row: all rows
        together take as many sweeps back, or a sweep forward for each dimension if that is less.
    outputs_of_all : float
        Those of all other sites together, each of which takes a sweep of its own.
    dim : int
    """
    return int(min(outputs_of_a_row, dim) + min(outputs_of_all, dim))


class Cost(NamedTuple):
    """Score evaluations that a method is charged for each draw, particle or chain.

    Attributes
    ----------
    start : float
        Before the first step.
    step : float
        For each step.
    """

    start: float
    step: float


def cost_of(method: Method, dim: int, sweeps: int | None) -> Cost:
    """What a method is charged.

    Scores that are differentiated count two. A Newton step counts one and its curvature each of
    ``sweeps`` (:func:`sweeps_of`), which take about as long as a score. Where a density comes in
    one piece, as Stan's does, ``sweeps`` is None, and a curvature is as many products with its
    Hessian as there are dimensions, each as much as two scores. A curvature that serves several
    steps is shared between them, and the first one's rest is charged at the start: so no run is
    ever charged less than it took.
    """
    if method.engine != "SVN":
        return Cost(0.0, method.cost)
    curvature = 2.0 * dim if sweeps is None else float(sweeps)
    share = curvature / as_curvature(method.options.get("curvature", "full")).every
    return Cost(curvature - share, 1.0 + share)


def check_noise(method: Method, noise: float) -> None:
    """Refuse noise where it has no meaning.

    Raises
    ------
    ValueError
        The method has Markov chains, whose acceptance needs the density and its exact score.
    """
    if noise and method.family in EXACT:
        raise ValueError(f"{method.engine} needs exact scores, found noise of level {noise:g}")


def uniform(dim: int, seed: int, number: int) -> Floats:
    """Points (number, D) of the host's kind of start."""
    return np.random.default_rng([5, seed]).uniform(-RADIUS, RADIUS, (number, dim))


def of_chains(start: Start | None, dim: int, seed: int, number: int) -> tuple[int, Floats, Floats]:
    """Evaluations spent, scales (D,) and points (number, D) of chains; None is the host's start."""
    if start is None:
        return 0, np.ones(dim), uniform(dim, seed, number)
    scales = start.modes[0].conditional_deviations
    return start.evaluations, scales, start.draw(number, seed)


def warm_up(budget: int) -> int:
    """Iterations of NUTS that adapt within a budget."""
    return min(300, max(50, budget // 40))


def after_warm_up(positions: Floats) -> Floats:
    """Draws (n, D) of chains (steps, C, D) without their warm-up, at most ``DRAWS``."""
    kept = positions[int(WARM_UP_SHARE * len(positions)) :]
    flat = kept.reshape(-1, kept.shape[-1])
    rows = np.linspace(0, len(flat) - 1, min(DRAWS, len(flat))).astype(int)
    return flat[rows]


def looks(budget: int) -> list[int]:
    """Score evaluations at which a run is looked at: doubling, and the last one."""
    points, point = [], FIRST_LOOK
    while point < budget:
        points.append(point)
        point *= 2
    return [*points, budget]
