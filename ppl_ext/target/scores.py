"""What targets of both hosts have in common: scores, tempering, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ModelCheckError

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
    return prior + (likelihood if temperature == 1.0 else likelihood / temperature)


def check_subsample_size(name: str, size: int, subsample_size: int) -> None:
    """See that a plate has rows and asks for some of them.

    Raises
    ------
    ModelCheckError
        It has none, asks for none, or for more than there are.
    """
    if size < 1:
        raise ModelCheckError(
            f"Plate '{name}' has size {size}. Expected at least one row, size of plate should be "
            "positive; check whether the data are empty."
        )
    if not 1 <= subsample_size <= size:
        raise ModelCheckError(
            f"Plate '{name}' has size {size} but asks for subsample_size={subsample_size}. "
            f"Expected from 1 to {size} rows: pass the full number of rows as the plate's size "
            "and the number of a minibatch as subsample_size."
        )


def repeated_plates_error(names: Sequence[str]) -> ModelCheckError:
    """What is said of plates of one name."""
    return ModelCheckError(
        f"Multiple plates are named {list(names)}. Expected a name of its own for every plate; a "
        "plate that is used twice is made once: `rows = plate(...)`, then `with rows: ...`."
    )


def check_not_empty(sizes: Mapping[str, int]) -> None:
    """See that some observed site has data; ``sizes`` are the numbers of entries, by site.

    Raises
    ------
    ModelCheckError
        There are observed sites, and all are empty.
    """
    if sizes and not any(sizes.values()):
        raise ModelCheckError(
            f"The data of every observed site are empty: {', '.join(map(repr, sizes))}. Expected "
            "at least one observation; without any the posterior is the prior."
        )


def check_observations(name: str, fn: Any, shape: Sequence[int], plates: Sequence[Any]) -> None:
    """See that a distribution and its data make no more observations than either has.

    Parameters
    ----------
    name : str
        The observed site.
    fn : distribution
        Of either host.
    shape : sequence of int
        Shape of the data.
    plates : sequence of frame
        The vectorized plates around the site, each with its axis ``dim`` (negative).

    Raises
    ------
    ModelCheckError
        They do, along an axis without a plate.
    """
    batch, observed = tuple(fn.batch_shape), tuple(shape[: len(shape) - fn.event_dim])
    axes = {frame.dim for frame in plates}
    together = np.broadcast_shapes(batch, observed)
    if math.prod(together) <= max(math.prod(batch), math.prod(observed)):
        return
    if all(size == 1 or axis - len(together) in axes for axis, size in enumerate(together)):
        return
    raise ModelCheckError(
        f"Site '{name}' has an invalid log_prob shape: a distribution of batch shape {batch} and "
        f"data of shape {observed} make {together}, more observations than either has. Expected "
        "shapes that agree; look for an axis of length one, as in y[:, None]."
    )


def check_each_once(name: str, fn: Any, shape: Sequence[int], plates: Sequence[Any]) -> None:
    """See that no datum of an observed site in a plate counts several times without a word.

    A plate expands what stands in it: with a column of means its rows make a square.

    Parameters
    ----------
    name, fn, shape, plates
        As :func:`check_observations` takes them.

    Raises
    ------
    ModelCheckError
        Data are repeated, and there is an axis without a plate, by which nobody means it.
    """
    batch, observed = tuple(fn.batch_shape), tuple(shape[: len(shape) - fn.event_dim])
    together = np.broadcast_shapes(batch, observed)
    axes = {frame.dim for frame in plates}
    unplated = [
        axis for axis in range(-len(together), 0) if together[axis] > 1 and axis not in axes
    ]
    times = math.prod(together) // max(1, math.prod(observed))
    if not axes or not unplated or times < 2 or math.prod(observed) < 2:
        return
    names = ", ".join(repr(frame.name) for frame in plates)
    raise ModelCheckError(
        f"Site '{name}' has an invalid log_prob shape: inside of plate {names} its distribution "
        f"has batch shape {batch} and its data {observed}, so that each datum counts {times} "
        f"times: axis {unplated[-1]} is of no plate. Expected each datum once: drop an axis of "
        "length one, as in mean[:, 0] or y[:, 0], or say what the axis is, by a plate with "
        "dim=... or to_event."
    )


def check_weights(name: str, what: str, weights: Sequence[int], log_prob: Sequence[int]) -> None:
    """See that a scale or a mask of a handler has an entry for each log density, and no more.

    Parameters
    ----------
    name : str
        The site.
    what : str
        "scale" or "mask".
    weights, log_prob : sequence of int
        Shapes of it, and of the site's log density.

    Raises
    ------
    ModelCheckError
        With it a log density would count several times.
    """
    try:
        together = np.broadcast_shapes(tuple(weights), tuple(log_prob))
    except ValueError:
        return  # the host says it
    if together == (1,) * (len(together) - len(log_prob)) + tuple(log_prob):
        return
    raise ModelCheckError(
        f"The {what} around site '{name}' has shape {tuple(weights)}, and its log density "
        f"{tuple(log_prob)}: together they make {together}, so that each log density counts "
        f"several times. Expected a {what} with one entry for each: drop an axis of length one, "
        f"as in {what}[:, 0], take to_event off the site's distribution, or leave the site out of "
        "the handler."
    )


def check_masks(name: str, fn: Any, shape: Sequence[int], plates: Sequence[Any]) -> None:
    """The same of masks that are part of an observed joint density, of which they make several.

    Parameters
    ----------
    name, fn, shape, plates
        As :func:`check_observations` takes them.
    """
    if not fn.event_dim:
        return
    observed = tuple(shape[: len(shape) - fn.event_dim])
    axes = {frame.dim for frame in plates}
    masks, joined = [], 0
    # To what stands below all that hosts expand for a mask.
    while hasattr(fn, "base_dist") and fn.event_dim + joined:
        if not joined:
            masks.append(tuple(getattr(getattr(fn, "_mask", None), "shape", ())))
        joined += getattr(fn, "reinterpreted_batch_ndims", 0)
        fn = fn.base_dist
    batch = tuple(fn.batch_shape)
    batch = batch[: max(0, len(batch) - joined)]
    for mask in masks:
        # Entries of the mask that no plate has, against those of the density and the data.
        free = [1 if axis - len(mask) in axes else size for axis, size in enumerate(mask)]
        check_weights(name, "mask", free, np.broadcast_shapes(batch, observed))
