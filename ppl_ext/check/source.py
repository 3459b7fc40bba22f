"""What is judged: draws, and what is known of where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ppl_ext.diagnostics.fit import FittedGuide
from ppl_ext.engines.result import Looks
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.options import described
from ppl_ext.target.noncentred import moved_sites

Kind = Literal["draws", "independent draws", "particles", "Markov chains"]

#: Draws that are made of a guide, and numbers that they may take together.
GUIDE_DRAWS, MOST_NUMBERS = 2_000, 20_000_000


@dataclass(frozen=True)
class Source:
    """Draws, and what is known of them.

    Attributes
    ----------
    name : str
        What they are of, such as "SVGD".
    kind : str
        "Markov chains", "independent draws" of a guide, "particles", or "draws" of which nothing
        is known.
    draws : dict of str to array
        Latent site to constrained values, first axis = draws.
    chains : int
        Chains that they are of, one after the other.
    divergent : float, optional
        Share of divergent transitions, where they were counted.
    energy : array (N, M), optional
        Energies of N transitions of M chains, where they were kept.
    positions, log_density : arrays (S, D) and (S,), optional
        The same draws in flat unconstrained space, and there the log density of the guide that
        they are of.
    held : dict
        Values of the model's parameters without a prior, where the fit has some of its own.
    """

    name: str
    kind: Kind
    draws: Mapping[str, Any]
    chains: int = 1
    divergent: float | None = None
    energy: Float[np.ndarray, "N M"] | None = None
    positions: Float[np.ndarray, "S D"] | None = None
    log_density: Float[np.ndarray, " S"] | None = None
    held: Mapping[str, Any] = field(default_factory=dict)


def number_of_draws(dim: int) -> int:
    """Draws that are made of a guide of D numbers."""
    return max(2, min(GUIDE_DRAWS, MOST_NUMBERS // dim))


def of_engine(engine: Any, samples: Callable[..., Mapping[str, Any]]) -> Source | None:
    """The draws of an engine, which ``samples`` takes; None where it fits a guide or Gaussian."""
    if hasattr(engine, "density") or hasattr(engine, "approximation"):
        return None
    name = type(engine).__name__
    if not engine.makes_draws:
        return Source(name, "particles", samples())
    return Source(name, "independent draws", samples(number_of_draws(engine.target.dim)))


def of_guide(
    name: str,
    fitted: FittedGuide,
    constrain: Callable[[Float[np.ndarray, "S D"]], Mapping[str, Any]],
    held: Mapping[str, Any] | None = None,
) -> Source:
    """Draws of a guide with a flat density, whose positions are put into their supports."""
    target = fitted.target
    positions, log_density = fitted.at_draws(number_of_draws(target.dim), None, _with_density)
    source = Source(name, "independent draws", constrain(positions), held=held or {})
    # Positions are those of the program that the engine has moved, and the check is of the program
    # as it is written. The sites' values serve both.
    if moved_sites(target.model):
        return source
    known = positions.astype(np.float64), log_density.astype(np.float64)
    return replace(source, positions=known[0], log_density=known[1])


def _with_density(density: Any, parameters: Any, target: Any, data: Any, z: Any) -> tuple[Any, Any]:
    return z, density.log_prob(parameters, z)


def source_of(found: Any, of_host: Callable[[Any], Source | None]) -> Source:
    """Draws of a fit, of a mapping, of what the host knows, or of anything with get_samples().

    Raises
    ------
    ArgumentError
        There are none.
    """
    if isinstance(found, Mapping):
        if "posterior" in found and hasattr(found["posterior"], "data_vars"):
            raise ArgumentError(
                "Expected draws by site, found an ArviZ object. Pass what it was made of, or "
                "{name: each.values.reshape(-1, *each.shape[2:]) for name, each in "
                'idata["posterior"].items()}.'
            )
        return Source("draws", "draws", found)
    if isinstance(found, Fit):
        chains = found.num_chains
        kind: Kind = "Markov chains" if chains > 1 else "independent draws"
        return Source("fit", kind, found.draws, chains)
    if isinstance(found, Looks):
        engine = found.ran.engine
        # NumPyro's result holds the state, which its engine does not; Pyro's engine holds its own.
        found = (engine, found) if isinstance(found, tuple) else engine
    if (known := of_host(found)) is not None:
        return known
    try:
        draws = found.get_samples()
    except (AttributeError, TypeError) as error:
        raise ArgumentError(
            "Expected draws as a mapping from site to values, a fit, an engine or guide that was "
            f"fitted, the result of a run, or a run of MCMC, found {described(found)}. Where "
            "engine or guide have no state of their own, pass (engine, result) or (guide, params)."
        ) from error
    return Source(type(found).__name__, "draws", dict(draws))
