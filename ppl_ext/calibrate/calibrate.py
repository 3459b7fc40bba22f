"""``calibrate``: parameters from the prior, data of them, a fit of each, ranks.

S. Talts, M. Betancourt, D. Simpson, A. Vehtari and A. Gelman, "Validating Bayesian inference
algorithms with simulation-based calibration" (2018). The log likelihood is ranked beside the
parameters: M. Modrák and others, "Simulation-based calibration checking for Bayesian computation:
the choice of test quantities shapes sensitivity" (2023).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from tqdm.auto import tqdm

from ppl_ext.calibrate.calibration import LIKELIHOOD, Calibration
from ppl_ext.check.source import Source, source_of
from ppl_ext.errors import ArgumentError, ConvergenceWarning, HeldParameterWarning
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.problem.programs import Programs
from ppl_ext.options import check_choice, check_count, described
from ppl_ext.statistics.convergence import in_chains
from ppl_ext.statistics.effective import effective_number
from ppl_ext.target.observations import Observations
from ppl_ext.target.on_host import on_host

#: Data sets, and draws that are ranked among, unless told otherwise.
DATA_SETS, DRAWS = 100, 99
#: The share of fits that may be worth fewer independent draws than are ranked among, and the
#: number below which that does not go however poor the fits are.
POOR, LEAST_DRAWS = 0.05, 9


@dataclass(frozen=True)
class Simulated:
    """Data sets of a model's own, and what is asked of each.

    Attributes
    ----------
    truths : dict of str to array (N, *site shape)
        The parameters that they were made of, by latent site.
    fit : callable
        The number of a data set to draws, and the word of the verdict or None.
    likelihood : callable
        The number of a data set and draws by site (S, *site shape), to log likelihoods (S,).
    plates, plate_sizes : dict
        For ArviZ.
    """

    truths: Mapping[str, np.ndarray]
    fit: Callable[[int], tuple[Source, str | None]]
    likelihood: Callable[[int, dict[str, np.ndarray]], Float[np.ndarray, " S"]]
    plates: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    plate_sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """What a package adds to a calibration, with its random numbers.

    Parameters
    ----------
    run : callable
        Of the model's arguments: values of its sites, and names of its factors.
    target : callable
        Of these: the log density.
    simulated : callable
        Of the log density and the arguments: the parameters, and what a replay gives of them.
    fit : callable
        Of the number of a data set, its arguments, and programs that fits share: any fit.
    source : callable
        Of such a fit, the number and the arguments: its draws, None where it is of no known kind.
    likelihood : callable
        Of a log density, its arguments and draws by site: log likelihoods (S,).
    as_array, like : callable
        An argument as an array or None; new observations in the form of the old ones.
    """

    run: Callable[..., tuple[Any, Any]]
    target: Callable[..., Any]
    simulated: Callable[..., tuple[Mapping[str, np.ndarray], Any]]
    fit: Callable[..., Any]
    source: Callable[..., Source | None]
    likelihood: Callable[[Any, Any, dict[str, np.ndarray]], Float[np.ndarray, " S"]]
    as_array: Callable[[Any], Any]
    like: Callable[[np.ndarray, Any], Any]


def simulated_by(
    host: Host,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    observed: Mapping[str, str] | None,
) -> Simulated:
    """Data sets of a model, with arguments like these."""
    observations = Observations(model, args, kwargs, observed)
    drawn, factors = host.run(args, kwargs)
    args, kwargs = observations.with_placeholders(drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeldParameterWarning)
        target = host.target(args, kwargs)
    local = target.local_sites if target.plates else ()
    check_can_be_simulated(factors, target.parameter_sites, local)
    truths, found = host.simulated(target, args, kwargs)
    observations.find(found.observed, host.as_array)
    programs = Programs()

    def arguments(number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return observations.with_rows(found.predictive, number, host.like)

    def fitted(number: int) -> tuple[Source, str | None]:
        call = arguments(number)
        given = host.fit(number, call, programs)
        level = given.verdict.level if isinstance(given, Fit) else None
        return source_of(given, lambda each: host.source(each, number, *call)), level

    def likelihood(number: int, draws: dict[str, np.ndarray]) -> Float[np.ndarray, " S"]:
        args, kwargs = arguments(number)
        return host.likelihood(target, target.bind(*args, **kwargs), draws)

    plates = {name: site.plates for name, site in found.sites.items()}
    return Simulated(truths, fitted, likelihood, plates, found.plate_sizes)


def check_options(
    fit_function: Any, num_data_sets: Any, num_draws: Any, observed: Any, progress_bar: Any
) -> None:
    """See that options have a meaning, before anything is simulated.

    Raises
    ------
    ArgumentError
        One has none.
    """
    check_count("num_data_sets", num_data_sets, 2)
    check_count("num_draws", num_draws, LEAST_DRAWS)
    check_choice("progress_bar", progress_bar, (True, False))
    if fit_function is not None and not callable(fit_function):
        raise ArgumentError(
            "Expected fit_function to be a function of the model's arguments that gives draws, "
            f"found {described(fit_function)}."
        )
    if observed is not None and not isinstance(observed, Mapping):
        raise ArgumentError(
            "Expected observed to be a mapping from observed sites to names of arguments, such as "
            f"{{'obs': 'y'}}, found {described(observed)}."
        )


def calibrate(
    simulated: Simulated,
    generator: np.random.Generator,
    num_draws: int = DRAWS,
    progress_bar: bool = True,
) -> Calibration:
    """Fit all data sets and rank their parameters; see the packages' ``calibrate``."""
    number = len(next(iter(simulated.truths.values())))
    compared: dict[str, list[Bool[np.ndarray, "2 L K"]]] = {}
    worth, levels = [], []
    for data_set in tqdm(range(number), desc="calibrate", disable=not progress_bar):
        source, level = simulated.fit(data_set)
        truth = {name: np.asarray(each[data_set]) for name, each in simulated.truths.items()}
        draws = _draws_of(source, truth, num_draws, data_set)
        worth.append(_worth(source, draws))
        if level is not None:
            levels.append(level)
        some = {name: _spaced(each, num_draws) for name, each in draws.items()}
        if set(draws) == set(truth):
            both = {name: np.concatenate([truth[name][None], some[name]]) for name in draws}
            # One call for the truth and the draws, so that both have the same rounding. The log
            # likelihood that cannot be computed ranks below all others.
            values = np.nan_to_num(simulated.likelihood(data_set, both), nan=-np.inf)
            some[LIKELIHOOD], truth[LIKELIHOOD] = values[1:], values[0]
        for name, each in some.items():
            # Comparisons are kept and not ranks, because how many draws are ranked among is known
            # only when all fits are made.
            pair = np.stack([each < truth[name], each == truth[name]])
            compared.setdefault(name, []).append(pair)
    if any(len(each) != number for each in compared.values()):
        raise ArgumentError(
            f"Expected draws of the same sites in all fits, found {sorted(compared)} in some only."
        )
    length = _number_of_ranks(np.array(worth), num_draws)
    ranks = {}
    for name, pairs in compared.items():
        # From (2, L, N, K) comparisons: numbers of draws below the truth and equal to it, (N, K)
        # each.
        below, equal = _spaced(np.stack(pairs, 2), length, axis=1).sum(1)
        # Equal values have any of the ranks between.
        ranks[name] = below + generator.integers(0, equal + 1)
    return Calibration(
        ranks,
        length,
        simulated.truths,
        np.array(worth),
        tuple(levels),
        simulated.plates,
        simulated.plate_sizes,
    )


def _draws_of(
    source: Source, truth: Mapping[str, np.ndarray], num_draws: int, data_set: int
) -> dict[str, np.ndarray]:
    """Draws of latent sites as NumPy arrays, checked."""
    draws = {
        name: np.asarray(on_host(source.draws[name])) for name in truth if name in source.draws
    }
    where = f"of data set {data_set}"
    if not draws:
        raise ArgumentError(
            f"Expected draws of {list(truth)}, or of some of them, found draws of "
            f"{list(source.draws)} in the fit {where}."
        )
    for name, each in draws.items():
        if each.shape[1:] != truth[name].shape:
            raise ArgumentError(
                f"Expected draws of '{name}' of shape (draws, "
                f"{', '.join(map(str, truth[name].shape))}), found {each.shape} in the fit {where}."
            )
        if len(each) < num_draws:
            raise ArgumentError(
                f"Expected at least num_draws={num_draws} draws, found {len(each)} of '{name}' in "
                f"the fit {where}. Draw more, or give a smaller num_draws."
            )
        if not np.isfinite(each).all():
            raise ArgumentError(
                f"Expected finite draws, found NaN or infinite ones of '{name}' in the fit {where}."
            )
    return draws


def _worth(source: Source, draws: Mapping[str, np.ndarray]) -> float:
    """Independent draws that those of a fit are worth, in the worst coordinate."""
    number = len(next(iter(draws.values())))
    if source.kind not in ("Markov chains", "draws"):
        return float(number)
    columns = np.concatenate([each.reshape(number, -1) for each in draws.values()], axis=1)
    # Constants, such as the corner of a Cholesky factor, vary nowhere and are worth all draws.
    return float(effective_number(in_chains(columns.astype(float), source.chains)).min())


def _spaced(values: np.ndarray, number: int, axis: int = 0) -> np.ndarray:
    """So many entries along an axis, evenly spaced."""
    length = values.shape[axis]
    return values.take(np.arange(number) * length // number, axis=axis)


def _number_of_ranks(worth: Float[np.ndarray, " N"], most: int) -> int:
    """Draws to rank among: as many as nearly all fits are worth."""
    # The same number for all data sets, as ranks of different ranges have no common distribution.
    # The smallest of all would let one poor fit decide.
    fits = float(np.quantile(worth, POOR))
    if fits < LEAST_DRAWS:
        warnings.warn(
            f"Draws of {int((worth < LEAST_DRAWS).sum())} of {len(worth)} fits are worth fewer "
            f"than {LEAST_DRAWS} independent ones ({fits:.1f} or fewer in one of twenty). Ranks "
            "may look wrong for this alone: draw more, or run chains longer.",
            ConvergenceWarning,
            stacklevel=4,
        )
    return int(min(most, max(LEAST_DRAWS, fits)))


def check_can_be_simulated(
    factors: Sequence[str], parameter_sites: Sequence[str], local_sites: Sequence[str]
) -> None:
    """See that running the model forwards draws from what its density says.

    Parameters
    ----------
    factors : sequence of str
        Sites that only add to the log density.
    parameter_sites : sequence of str
        Parameters that are deterministic sites, as of Stan programs.
    local_sites : sequence of str
        Latent sites in plates that draw minibatches.

    Raises
    ------
    ArgumentError
        It does not.
    """
    if parameter_sites:
        raise ArgumentError(
            "Expected a model that can draw data, found a Stan program, whose density is in one "
            "piece. Write it with the host's primitives."
        )
    if factors:
        raise ArgumentError(
            f"Expected a model that can draw parameters and data, found factors: {list(factors)}. "
            "Their log density has no distribution to draw from: write them as observed sites."
        )
    if local_sites:
        raise ArgumentError(
            f"Expected no latent sites in plates that draw minibatches, found {list(local_sites)}: "
            "one run of the model has values of some rows only. Leave out subsample_size."
        )
