"""What may be asked of a fit, and in which chunks its draws are evaluated.

Everything is evaluated on the full data, in chunks of rows (the target's own sweep) and in
chunks of draws, so that neither many rows nor many draws of a network take much memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_number

#: Draws evaluated at once unless told otherwise, and the most numbers that these may hold.
DRAW_CHUNK = 100
DRAW_ELEMENTS = 2**24
#: Draws of a host's fit unless told otherwise.
HOST_DRAWS = 1000
#: How to get further draws of a host's chains.
LONGER = "Run the chains longer for further draws."
#: What to do about a batch.
PASS_ALL_ROWS = (
    "Pass all rows, as args=(...) and kwargs={...}, or a loader of all, as batches=loader."
)

#: Of a guide's density, its parameters, the target, its data and a chunk of draws (S, D): arrays
#: whose first axis is the draws.
Evaluate = Callable[[Any, Any, Any, Any, Any], tuple[Any, ...]]


@dataclass(frozen=True)
class FittedGuide(ABC):
    """A guide's flat density and parameters, and the target that it approximates, on all rows."""

    density: Any
    parameters: Any
    target: Any
    data: Any

    @abstractmethod
    def at_draws(
        self, num_samples: int, draw_chunk: int | None, evaluate: Evaluate
    ) -> tuple[Float[np.ndarray, "S ..."], ...]:
        """What a function finds at draws of the guide, chunk by chunk, in host memory."""


def target_of_engine(
    engine: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    passes: Passes | None = None,
) -> tuple[Any, Any]:
    """An engine's target, and the model's arguments with all rows: by default the last ones.

    With ``passes`` its sweeps pass over a loader.
    """
    checked_arguments(args, kwargs)
    if model is not None:
        raise ArgumentError(
            f"Expected no model with {type(engine).__name__}, which has one. Leave model out."
        )
    target = engine.target.over(passes)
    if args is None and kwargs is None:
        target.require_all_rows(engine.data, PASS_ALL_ROWS)
        return target, engine.data
    return target, all_rows(target, args, kwargs)


def bound_rows(
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    passes: Any,
    must_be_all: bool,
) -> tuple[Any, Any]:
    """A target that evaluates with a loader's rows too, and a model's arguments as its data."""
    target = target.over(passes)
    if must_be_all:
        return target, all_rows(target, args, kwargs)
    return target, target.bind(*args, **kwargs)


def all_rows(target: Any, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> Any:
    """The model's arguments as a target's data; refused where they hold only a batch."""
    data = target.bind(*(args or ()), **dict(kwargs or {}))
    target.follows(data, look=False)  # raises where the arguments do not fit each other
    target.require_all_rows(data, PASS_ALL_ROWS)
    return data


def chunk_sizes(num: int, dim: int, draw_chunk: int | None) -> list[int]:
    """Lengths of the chunks in which ``num`` draws of D numbers are evaluated, nearly equal."""
    check_count("draw_chunk", draw_chunk, optional=True)
    chunk = draw_chunk or max(1, min(DRAW_CHUNK, DRAW_ELEMENTS // dim))
    chunks = -(-num // chunk)
    # Nearly equal chunks in place of full ones and a small rest: JAX compiles a program for each
    # size.
    size = -(-num // chunks)
    whole, tail = divmod(num, size)
    return [size] * whole + [tail] * (tail > 0)


def checked_arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The model's arguments, seen to come as a tuple and a mapping, or as None for none.

    Raises
    ------
    ArgumentError
        They do not.
    """
    if args is not None and not isinstance(args, (tuple, list)):
        raise ArgumentError(
            f"Expected args to be a tuple of the model's arguments, found {type(args).__name__}. "
            "Write args=(x,) for a single one."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(
            f"Expected kwargs to be a mapping from names to arguments, found "
            f"{type(kwargs).__name__}."
        )
    return tuple(args or ()), dict(kwargs or {})


def check_temperature(of_target: float, temperature: float | None) -> float:
    """The temperature asked for; that of the target when none is.

    Raises
    ------
    ArgumentError
        It is not positive.
    """
    if temperature is None:
        return of_target
    check_number("likelihood_temperature", temperature)
    return float(temperature)


def check_fits_a_guide(engine: Any) -> None:
    """Refuse engines whose draws have no log density."""
    if not hasattr(engine, "density") and not hasattr(engine, "approximation"):
        raise ArgumentError(
            f"Expected an engine that fits a guide or a Gaussian, found {type(engine).__name__}, "
            "whose draws have no log density. Use ksd, which takes draws alone."
        )


def checked_model(guide: Any, model: Callable[..., Any] | None) -> Callable[..., Any]:
    """The model of an autoguide, seen to be given."""
    if model is None:
        raise ArgumentError(
            f"Expected the model of {type(guide).__name__}, found none. Pass model=..., and its "
            "arguments with all rows of the data as args=(...) and kwargs={...}."
        )
    return model


def sites_of_guide(names: Sequence[str], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The latent sites among what a host's guide has drawn.

    Raises
    ------
    ArgumentError
        It does not draw all of them.
    """
    if missing := [name for name in names if name not in drawn]:
        raise ArgumentError(
            f"Expected a guide that draws every latent site of the model, found none of "
            f"{missing} among {sorted(drawn)}. Pass the guide that was fitted with this model."
        )
    return {name: drawn[name] for name in names}


def evenly_spaced(num_draws: int, num_samples: int | None, more: str) -> NDArray[np.int64] | None:
    """Places of so many draws, evenly spaced; None where all are wanted.

    Of chains, one after the other, they are as many of each where their number is a multiple of
    the number of chains.

    Parameters
    ----------
    num_draws : int
    num_samples : int, optional
    more : str
        How to get further draws.

    Raises
    ------
    ArgumentError
        There are fewer.
    """
    if num_samples is None:
        return None
    check_count("num_samples", num_samples)
    if num_samples > num_draws:
        raise ArgumentError(
            f"Expected num_samples to be at most {num_draws}, all draws that there are, found "
            f"{num_samples}. {more}"
        )
    # The middle of each of so many stretches.
    return (2 * np.arange(num_samples) + 1) * num_draws // (2 * num_samples)


def of_each_chain(num_samples: int | None, num_chains: int) -> int | None:
    """So many draws, or the next larger number that is a multiple of the number of chains."""
    check_count("num_samples", num_samples, optional=True)
    return None if num_samples is None else -(-num_samples // num_chains) * num_chains


def asked_of(engine: Any, num_samples: int | None) -> dict[str, int]:
    """What an engine, or what has several chains, is asked for so many draws."""
    wanted = of_each_chain(num_samples, getattr(engine, "num_chains", 1))
    return {} if wanted is None else {"num_samples": wanted}


class HostFit:
    """What the packages' ``HostFit`` share: the guide, and where it has a log density, its fit."""

    guide: Any
    fitted: Any

    def _log_q(self, positions: Any) -> dict[str, Any]:
        if self.fitted is None:
            return {}
        return {"log_q": self.fitted.density.log_prob(self.fitted.parameters, positions)}

    def arviz_attributes(self) -> dict[str, Any]:
        """The host's engine and the guide."""
        name = getattr(self.guide, "__name__", type(self.guide).__name__)
        return {"engine": "SVI", "guide": name}


class Chains:
    """What the packages' ``Chains`` share: the draws of the host's ``MCMC``, or some of them."""

    def _take(self, mcmc: Any, kernel: Any, has_draws: bool, num_samples: int | None) -> None:
        if not has_draws:
            raise ArgumentError("Expected an MCMC object after run, found one without draws.")
        if getattr(kernel, "model", None) is None:
            raise ArgumentError(
                f"Expected a kernel with a model, found {type(kernel).__name__} without one."
            )
        self.mcmc, self._kernel, self.num_chains = mcmc, kernel, int(mcmc.num_chains)
        self._all = dict(mcmc.get_samples())
        self._num_draws = len(next(iter(self._all.values())))
        wanted = of_each_chain(num_samples, self.num_chains)
        self._places = evenly_spaced(self._num_draws, wanted, LONGER)

    def _taken(self, values: Any) -> Any:
        return values if self._places is None else values[self._places]

    def _drawn(self) -> dict[str, Any]:
        return {name: self._taken(value) for name, value in self._all.items()}

    def arviz_attributes(self) -> dict[str, Any]:
        """The kernel's name, and that the draws are chains."""
        return {"engine": type(self._kernel).__name__, "sample_kind": "Markov chains"}
