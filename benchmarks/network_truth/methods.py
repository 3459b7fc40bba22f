"""What is judged: `fit`, the engines by their recipes on pages, and their rivals."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.network_truth.outputs import Floats
from benchmarks.trust.methods import (
    Draws,
    Fitted,
    Method,
    Size,
    judged_by_itself,
    run_fit,
    scores_of_a_start,
    scores_of_a_step,
)
from benchmarks.trust.problems import Program
from benchmarks.trust.target import PACKAGES
from ppl_ext.errors import ConvergenceWarning, DivergenceWarning

#: Chains of the hosts' NUTS, their warm-up and draws.
NUTS_CHAINS, NUTS_WARM_UP, NUTS_DRAWS = 2, 300, 300
#: Steps of the hosts' variational inference, and Adam's first step size, which falls to 0.
ADVI_STEPS, ADVI_RATE = 10_000, 0.02
#: Draws of guides, and draws at most that are judged.
DRAWS, JUDGED = 1_000, 2_000


@dataclass(frozen=True)
class Recipe:
    """One way to an answer.

    Attributes
    ----------
    about : str
    engine, kernel : str
        Public name of an engine, or of a kernel of the hosts' MCMC, of this project; neither for
        `fit` and the rivals.
    steps : int
        Of an engine, or draws of a kernel after the warm-up.
    warm_up, chains : int
        Of a kernel.
    scores : int
        Score evaluations of a kernel's draw.
    guide : str
        Of an engine: a class of the host or of this project.
    adam : float or None
        Step size of an engine's optimiser.
    given : tuple
        A kernel's settings by position.
    options, run : dict
        Further options of the engine or kernel, and of its ``run``.
    linearized : bool
        Whether the network is made linear at the engine's mode.
    watch : callable or None
        Is given an engine's draws every ``run["callback_every"]`` steps, and ends it by True.
    """

    about: str
    engine: str = ""
    kernel: str = ""
    steps: int = 0
    warm_up: int = 0
    chains: int = 4
    scores: int = 1
    guide: str = ""
    adam: float | None = None
    given: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    linearized: bool = False
    watch: Callable[[Draws], bool] | None = None


@dataclass(frozen=True)
class Answer:
    """What a method returns.

    Attributes
    ----------
    fitted : Fitted
        Draws, evaluations, and what the method says of itself.
    linear_at : dict or None
        Values of the latent sites at which the network is made linear.
    """

    fitted: Fitted
    linear_at: Draws | None = None


def answered(
    recipe: Recipe, steps: int, engine: Any, result: Any, draws: Draws, linear_at: Draws | None
) -> Answer:
    """What an engine's run of so many steps has found; its judgement is what it says of that."""
    method = Method(recipe.about, engine=recipe.engine, options=dict(recipe.options))
    evaluations = steps * scores_of_a_step(method, engine.plan) + scores_of_a_start(engine)
    said = result.judgement
    fitted = Fitted(
        draws,
        evaluations,
        trusted=None if said is None else not said.doubtful,
        reasons=() if said is None else tuple(said.reasons),
    )
    return Answer(fitted, linear_at)


def _proximal(guide: str) -> Recipe:
    about = f"{guide}, 5,000 steps"
    return Recipe(about, engine="ProximalScoreVI", steps=5_000, guide=guide)


def _particles(engine: str, steps: int, start: str | None = None, number: int = 20) -> Recipe:
    said = f", start={start!r}" if start else ""
    return Recipe(
        f"{number} particles, Adam(0.01), {steps:,} steps{said}",
        engine=engine,
        steps=steps,
        adam=0.01,
        options={"num_particles": number},
        run={"start": start} if start else {},
    )


def _kernel(kernel: str, *given: Any, scores: int = 1, **options: Any) -> Recipe:
    settings = [repr(each) for each in given]
    settings += [f"{name}={value!r}" for name, value in options.items()]
    about = f"{kernel}({', '.join(['model', *settings])}), 4 chains of 1,000 + 5,000"
    return Recipe(
        about,
        kernel=kernel,
        steps=5_000,
        warm_up=1_000,
        scores=scores,
        given=given,
        options=options,
    )


#: Draws of `fit` chosen by their outputs at the held-out inputs, and how many.
FEW, REPRESENTATIVE = "fit, 20 of its draws", 20
#: Of the command for accelerators.
LARGE_ENSEMBLE = "DeepEnsemble, 64"

_LAPLACE: Any = {"engine": "LaplaceGGN", "steps": 2_000, "adam": 0.01}

#: Rates of the stochastic gradient kernels are those of the page's examples. Engines that need
#: minibatches (`SVGDVR`) or a sampler (`SteinDiscrepancyVI`) have no recipe for networks.
METHODS: dict[str, Recipe] = {
    "fit": Recipe("`fit(model, *args, held_out=rows)`"),
    FEW: Recipe(
        f"`representative_draws` of the same, {REPRESENTATIVE}, by the outputs at the held-out "
        "inputs"
    ),
    "NUTS": Recipe(f"the host's, {NUTS_CHAINS} chains of {NUTS_WARM_UP} + {NUTS_DRAWS}"),
    "ADVI": Recipe(
        f"the host's SVI, AutoDiagonalNormal, {ADVI_STEPS:,} steps of Adam, step size {ADVI_RATE} "
        "falling to 0 by a cosine"
    ),
    "MCLMC": Recipe(
        "MCLMC(model), 16 chains of 700 + 500", kernel="MCLMC", steps=500, warm_up=700, chains=16
    ),
    "ProximalScoreVI": _proximal("AutoDiagonalNormal"),
    "ProximalScoreVI, low rank": _proximal("AutoLowRankMultivariateNormal"),
    "ProximalScoreVI, by layer": _proximal("AutoLayerLowRankNormal"),
    "ProximalScoreVI, matrix normal": _proximal("AutoMatrixNormal"),
    "SVGD": _particles("SVGD", 5_000, "host"),
    "WGD": _particles("WGD", 5_000, "host"),
    "DeepEnsemble": _particles("DeepEnsemble", 2_000),
    LARGE_ENSEMBLE: _particles("DeepEnsemble", 2_000, number=64),
    "SVN": Recipe("20 particles, 60 steps", engine="SVN", steps=60, options={"num_particles": 20}),
    "LaplaceGGN": Recipe("Adam(0.01), 2,000 steps, draws of all weights", **_LAPLACE),
    "LaplaceGGN, linearised": Recipe(
        "the same draws, of the network made linear at the mode", **_LAPLACE, linearized=True
    ),
    "FisherVI": Recipe(
        "AutoDiagonalNormal, Adam(0.01), 5,000 steps",
        engine="FisherVI",
        steps=5_000,
        guide="AutoDiagonalNormal",
        adam=0.01,
    ),
    "GSM": Recipe("1,000 steps", engine="GSM", steps=1_000),
    "BaM": Recipe("1,000 steps", engine="BaM", steps=1_000),
    "SGLD": _kernel("SGLD", 1e-4),
    "PSGLD": _kernel("PSGLD", 1e-4),
    "SGHMC": _kernel("SGHMC", 0.01, friction=20.0),
    "CyclicalSGHMC": _kernel("CyclicalSGHMC", 0.01, 500, friction=20.0),
    "ReplicaExchangeSGLD": _kernel(
        "ReplicaExchangeSGLD", 1e-4, (1.0, 1.5, 2.25), scores=30, num_steps=10
    ),
}

#: Those that the command judges unless told otherwise.
DEFAULT = tuple(name for name in METHODS if name != LARGE_ENSEMBLE)


def is_there(name: str, backend: str) -> bool:
    """Whether a package has what a method needs."""
    recipe = METHODS[name]
    package = importlib.import_module(PACKAGES[backend])
    needed = recipe.engine or recipe.kernel
    return not needed or hasattr(package, needed)


def run_method(
    name: str, backend: str, program: Program, seed: int, size: Size, held_out: Any = None
) -> Answer:
    """Run a method on a network; what it warns of its convergence is what it says of itself.

    `fit` gets the rows that are held out, of which it says whether they are calibrated.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _run(name, backend, program, seed, size, held_out)
    doubts = (ConvergenceWarning, DivergenceWarning)
    told = [str(each.message) for each in caught if issubclass(each.category, doubts)]
    if not told:
        return found
    reasons = tuple(dict.fromkeys([*found.fitted.reasons, *told]))
    return replace(found, fitted=replace(found.fitted, trusted=False, reasons=reasons))


def _run(name: str, backend: str, program: Program, seed: int, size: Size, held_out: Any) -> Answer:
    if name in ("fit", FEW):
        fitted = run_fit(backend, program, seed, held_out=held_out)
        if name == FEW:
            few = few_of(backend, program.model, fitted.draws, held_out)
            # The verdict is on all draws. Figures of so few are not known to 400 effective draws.
            reasons = (f"{REPRESENTATIVE} of the draws", *fitted.reasons)
            fitted = replace(fitted, draws=few, trusted=False, reasons=reasons)
        return Answer(fitted)
    recipe = METHODS[name]
    module = importlib.import_module(f"benchmarks.network_truth.{backend}_methods")
    found: Answer
    if recipe.engine:
        found = module.run_engine(recipe, program, seed, size)
    elif recipe.kernel:
        found = module.run_kernel(recipe, program, seed, size)
    elif name == "NUTS":
        warm_up, draws = size.of(NUTS_WARM_UP), size.of(NUTS_DRAWS)
        hosts = importlib.import_module(f"benchmarks.trust.{backend}_methods")
        found = Answer(hosts.host_nuts(program, seed, NUTS_CHAINS, warm_up, draws))
    else:
        found = Answer(module.advi(program, seed, size))
    return found


def few_of(backend: str, model: Any, draws: Draws, held_out: tuple[Any, ...]) -> Draws:
    """Draws by site of which few predict as all do, at inputs whose responses are not looked at."""
    package = importlib.import_module(PACKAGES[backend])
    array = importlib.import_module("benchmarks.hosts").host_of(backend).array
    given = {name: array(value) for name, value in draws.items()}
    every = package.predictive_distribution(model, given, held_out[0])
    places = package.representative_draws(every, REPRESENTATIVE)
    return {name: value[places] for name, value in draws.items()}


def length_of(recipe: Recipe, size: Size, kernel: Any) -> tuple[int, int, int]:
    """Draws of a kernel's warm-up, draws after it, and score evaluations of all chains.

    A kernel with cycles takes whole ones, whose exploring steps give no draws.
    """
    period = getattr(kernel, "draws_per_cycle", 1)
    cycles = [max(1, size.of(number) // period) for number in (recipe.warm_up, recipe.steps)]
    steps = sum(cycles) * getattr(kernel, "cycle_length", 1)
    return cycles[0] * period, cycles[1] * period, recipe.chains * recipe.scores * steps


def flat_and_thinned(fitted: Fitted, most: int = JUDGED) -> tuple[Draws, tuple[int, ...]]:
    """Draws (S, ...) of all chains, at most about so many, evenly apart, and their (chains, draws).

    The shape is (S,) where there are no chains.
    """
    draws = fitted.draws
    if not fitted.chains:
        number = len(next(iter(draws.values())))
        step = -(-number // most)
        kept = {name: each[::step] for name, each in draws.items()}
        return kept, (len(next(iter(kept.values()))),)
    chains, number = next(iter(draws.values())).shape[:2]
    step = -(-chains * number // most)
    kept = {name: each[:, ::step] for name, each in draws.items()}
    shape = next(iter(kept.values())).shape[:2]
    return {name: each.reshape(-1, *each.shape[2:]) for name, each in kept.items()}, shape


def what_it_says(fitted: Fitted, values: Floats, shape: tuple[int, ...]) -> dict[str, Any]:
    """Whether a method trusts its answer, and why not.

    Chains are asked what the field asks, of the outputs (S, M) and not of weights, which have no
    identity; ``shape`` is their (chains, draws).
    """
    columns: dict[str, NDArray[Any]] = {}
    if fitted.chains:
        columns = {str(n): column.reshape(shape) for n, column in enumerate(values.T)}
    said = judged_by_itself(fitted, columns)
    if fitted.chains and fitted.reasons:
        said |= {"trusted": False, "told": [*said["told"], *fitted.reasons]}
    return said


def all_finite(draws: Mapping[str, NDArray[Any]]) -> bool:
    """Whether no draw is infinite or NaN."""
    return all(bool(np.isfinite(each).all()) for each in draws.values())
