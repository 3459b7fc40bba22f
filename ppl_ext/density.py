"""What targets of both hosts have in common: scores, tempering, and what they refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from jaxtyping import Float

from ppl_ext.errors import ArgumentError

Array = TypeVar("Array")


class Score(NamedTuple, Generic[Array]):
    """Gradient and value of the target at P positions.

    Parameters
    ----------
    score : array (P, D)
        Gradient of log prior + log likelihood / temperature.
    log_prior, log_likelihood : array (P,)
        The two parts, not tempered.
    """

    score: Float[Array, "P D"]
    log_prior: Float[Array, " P"]
    log_likelihood: Float[Array, " P"]

    def log_density(self, temperature: float = 1.0) -> Float[Array, " P"]:
        """Log prior + log likelihood / temperature."""
        return tempered(self.log_prior, self.log_likelihood, temperature)


class ScoreParts(NamedTuple, Generic[Array]):
    """Gradients of the two parts of the target at P positions, neither of them tempered.

    Parameters
    ----------
    prior, likelihood : array (P, D)
        Gradients of the log prior and the log likelihood.
    log_prior, log_likelihood : array (P,)
        Values of the two parts.
    """

    prior: Float[Array, "P D"]
    likelihood: Float[Array, "P D"]
    log_prior: Float[Array, " P"]
    log_likelihood: Float[Array, " P"]

    def score(self, temperature: float = 1.0) -> Score[Array]:
        """The two parts as one."""
        gradient = tempered(self.prior, self.likelihood, temperature)
        return Score(gradient, self.log_prior, self.log_likelihood)


def tempered(
    log_prior: Float[Array, "*P"], log_likelihood: Float[Array, "*P"], temperature: float
) -> Float[Array, "*P"]:
    """Log prior + log likelihood / temperature, or the gradients of these."""
    prior: Any = log_prior
    likelihood: Any = log_likelihood
    joint: Array = prior + (likelihood if temperature == 1.0 else likelihood / temperature)
    return joint


def check_call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """See that a model can be called with these arguments.

    Raises
    ------
    ArgumentError
        The arguments do not fit its signature.
    """
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"The arguments do not fit the model: {error}. Expected model{signature}, found "
            f"{len(args)} positional arguments and keywords {sorted(kwargs)}."
        ) from error
