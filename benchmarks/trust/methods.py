"""What is compared: `fit`, the engines by their recipes, and their rivals."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import hosts
from benchmarks.hosts import BACKENDS
from benchmarks.trust.problems import Program
from ppl_ext.errors import DoubtfulFitWarning
from ppl_ext.fit.warm import WARMUP

Draws = dict[str, NDArray[Any]]

#: Chains, and draws of each, of NUTS; as many of warm-up.
CHAINS, WARM_UP, CHAIN_DRAWS = 4, 1_000, 1_000
#: Draws of each chain whose transitions take two steps and not as many as NUTS has.
ADJUSTED_DRAWS = 5_000
#: Steps of the hosts' variational inference, and Adam's first step size, which falls to 0.
STEPS, RATE = 5_000, 0.02
#: Draws of guides.
DRAWS = 1_000
#: What an engine warns by of its own answer.
DOUBTS = (UserWarning, DoubtfulFitWarning)
#: Chains are trusted with R-hat below this, so many effective draws, and no divergence.
R_HAT, EFFECTIVE = 1.01, 400.0


@dataclass(frozen=True)
class Size:
    """How long methods run; a small one is for tests.

    Attributes
    ----------
    share : float
        Of the steps and draws that a method's recipe has.
    """

    share: float = 1.0

    def of(self, number: int) -> int:
        """So many of a number, at least 20."""
        return max(min(20, number), round(self.share * number))


@dataclass(frozen=True)
class Fitted:
    """What a method returns.

    Attributes
    ----------
    draws : dict
        By latent site, (draws, ...), or (chains, draws, ...) where ``chains`` says so.
    evaluations : int or None
        Score evaluations, where they can be told.
    warm_up : int or None
        Those of them before the first draw that is kept, of chains of a fixed length.
    chains : bool
    divergences : int
        Of chains.
    trusted : bool or None
        What the method says of its answer; None where it says nothing, which whoever asked takes
        for trust.
    level : str
        Its word for that.
    reasons : tuple of str
    effective : float or None
        Effective draws, where the method knows.
    stages : tuple of dict
        Of a method that has some: name, evaluations and seconds of each.
    """

    draws: Draws
    evaluations: int | None
    warm_up: int | None = None
    chains: bool = False
    divergences: int = 0
    trusted: bool | None = None
    level: str = ""
    reasons: tuple[str, ...] = ()
    effective: float | None = None
    stages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Method:
    """One way to an answer.

    Attributes
    ----------
    about : str
        Its recipe.
    backends : tuple of str
    engine : str
        Public name of an engine of this project.
    steps : int
        Of an engine.
    guide : str
        Its guide, a class of the host.
    adam : float or None
        Step size of the engine's optimiser.
    options : dict
        Its further options.
    """

    about: str
    backends: tuple[str, ...] = BACKENDS
    engine: str = ""
    steps: int = 0
    guide: str = ""
    adam: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_FULL = "AutoMultivariateNormal"

METHODS: dict[str, Method] = {
    "fit": Method("`fit(model, *args)`, nothing else said"),
    "svi": Method(
        f"host SVI, {_FULL}, {STEPS:,} steps of Adam, step size {RATE} falling to 0 by a cosine"
    ),
    "nuts": Method(f"host NUTS, {CHAINS} chains of {WARM_UP:,} + {CHAIN_DRAWS:,}"),
    "nuts-dense": Method("the same with a dense metric"),
    "nutpie": Method(
        f"nutpie on NumPyro's density, {CHAINS} chains, its own tuning and numbers of draws",
        ("numpyro",),
    ),
    "nutpie-low-rank": Method("the same with its metric of low rank", ("numpyro",)),
    "warm-chains": Method(
        f"`warm_chains` from `find_start`, {CHAINS} chains of {CHAIN_DRAWS:,} after its own warm-up"
    ),
    "warm-chains-fit": Method("the same from `fit`"),
    "pathfinder": Method(
        f"BlackJAX multi-path Pathfinder, {CHAINS} paths, PSIS resampling", ("numpyro",)
    ),
    "pathfinder-nuts": Method(
        f"BlackJAX NUTS, {CHAINS} chains of 400 + {CHAIN_DRAWS:,} with Pathfinder adaptation",
        ("numpyro",),
    ),
    "window-nuts": Method(
        f"BlackJAX NUTS, {CHAINS} chains of {WARM_UP:,} + {CHAIN_DRAWS:,} with window adaptation",
        ("numpyro",),
    ),
    "mams": Method(
        f"BlackJAX Metropolis-adjusted microcanonical dynamics, {CHAINS} chains of "
        f"{ADJUSTED_DRAWS:,}, two steps each in the mean, tuned before by its own search, a fifth "
        "as many",
        ("numpyro",),
    ),
    "ProximalScoreVI": Method(
        f"README: {_FULL}, 2,000 steps", engine="ProximalScoreVI", steps=2_000, guide=_FULL
    ),
    "SVGD": Method(
        "README: 64 particles, Adam(0.05), 500 steps",
        engine="SVGD",
        steps=500,
        adam=0.05,
        options={"num_particles": 64},
    ),
    "SVN": Method("64 particles, 50 steps", engine="SVN", steps=50, options={"num_particles": 64}),
    "LaplaceGGN": Method("Adam(0.01), 2,000 steps", engine="LaplaceGGN", steps=2_000, adam=0.01),
    "GSM": Method("1,000 steps", engine="GSM", steps=1_000),
    "BaM": Method("1,000 steps", engine="BaM", steps=1_000),
    "FisherVI": Method(
        f"{_FULL}, Adam(0.01), 2,000 steps", engine="FisherVI", steps=2_000, guide=_FULL, adam=0.01
    ),
}


def run_method(name: str, backend: str, program: Program, seed: int, size: Size) -> Fitted:
    """Run a method on a program, in the precision that is set.

    Raises
    ------
    ValueError
        The method does not exist in this host.
    """
    method = METHODS[name]
    if backend not in method.backends:
        raise ValueError(f"Expected one of {', '.join(method.backends)} for {name}: {backend!r}.")
    if name == "fit":
        return run_fit(backend, program, seed)
    module = importlib.import_module(f"benchmarks.trust.{backend}_methods")
    if method.engine:
        found: Fitted = module.run_engine(method, program, seed, size)
    else:
        found = module.RIVALS[name](program, seed, size)
    return found


def options_of_chains(size: Size) -> dict[str, Any]:
    """Options of ``warm_chains`` in both hosts."""
    warmup, draws = size.of(WARMUP), size.of(CHAIN_DRAWS)
    return {"num_warmup": warmup, "num_samples": draws, "num_chains": CHAINS, "progress_bar": False}


def run_fit(backend: str, program: Program, seed: int, **options: Any) -> Fitted:
    """`fit` of this project with its defaults, but for these options."""
    if backend == "pyro":
        import pyro

        pyro.set_rng_seed(seed)
    given = {**program.kwargs, **options}
    found = hosts.fitted(backend, program.model, *program.args, seed=seed, **given)
    verdict = found.verdict
    stages: list[dict[str, Any]] = []
    for number, stage in enumerate(verdict.cost):
        spent = {"evaluations": int(stage.evaluations), "seconds": float(stage.seconds)}
        stages.append({"name": str(getattr(stage, "name", number)), **spent})
    return Fitted(
        as_arrays(found.draws),
        sum(stage["evaluations"] for stage in stages),
        trusted=bool(verdict.trusted),
        level=str(verdict.level),
        reasons=tuple(map(str, verdict.reasons)),
        stages=tuple(stages),
    )


def scores_of_a_step(method: Method, plan: Any) -> int:
    """Score evaluations of a step of an engine with this plan.

    A curvature of all particles counts as a derivative for each dimension.
    """
    particles = method.options.get("num_particles")
    if particles is None:
        return int(getattr(plan, "num_samples", 1))
    return int(particles) * (1 + plan.target.dim if method.engine == "SVN" else 1)


def scores_of_a_start(engine: Any) -> int:
    """Score evaluations that an engine took to find where to start."""
    return 0 if engine.start is None else int(engine.start.evaluations)


def as_arrays(draws: Mapping[str, Any]) -> Draws:
    """Draws of a host as NumPy arrays in double precision."""
    return {
        name: np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float64)
        for name, value in draws.items()
    }


def judged_by_itself(fitted: Fitted, columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Whether a method's answer is trusted, and why not.

    What chains are asked is what the field asks: R-hat, effective draws, divergences; ``columns``
    (chains, draws) are their scalars. A method that says nothing is trusted.
    """
    if not fitted.chains:
        trusted = True if fitted.trusted is None else fitted.trusted
        return {"trusted": trusted, "level": fitted.level, "told": list(fitted.reasons)}
    import arviz as az

    with np.errstate(all="ignore"):
        moving = [value for value in columns.values() if np.ptp(value) > 0.0]
        r_hat = max((float(az.rhat(value)) for value in moving), default=math.inf)
        bulk = min((float(az.ess(value)) for value in moving), default=0.0)
        tail = min((float(az.ess(value, method="tail")) for value in moving), default=0.0)
    told = []
    if not r_hat <= R_HAT:
        told.append(f"R-hat {r_hat:.3f}")
    if not min(bulk, tail) >= EFFECTIVE:
        told.append(f"{min(bulk, tail):.0f} effective draws")
    if fitted.divergences:
        told.append(f"{fitted.divergences} divergences")
    found = {"trusted": not told, "level": fitted.level, "told": told}
    return found | {"R-hat": r_hat, "bulk ESS": bulk, "tail ESS": tail}
