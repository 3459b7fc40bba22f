"""Noise by row in the linear operations of a program, on weights that a mean-field guide has drawn.

What flipout and the local reparameterisation share. Both replace ``x W``, with W a draw of a
latent site whose guide is a factorised Normal, by something that has the same distribution in
each row of x but not the same noise in all rows. The packages find such operations; what takes
their place is the business of a :class:`RowNoise`. Model, guide and the values of all latent sites
stay as they are, and so does every term of the objective but the likelihood.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError


class NormalDraw(NamedTuple):
    """A draw of a factorised Normal: value, mean and standard deviations, all of one shape."""

    value: Any
    mean: Any
    scale: Any


@dataclass(frozen=True)
class LinearUse:
    """One linear operation y = x W on a weight.

    Attributes
    ----------
    site : str
        The weight's site.
    x : array
        The other operand.
    draw : NormalDraw
        The weight, laid out as the operation takes it.
    apply : callable
        The operation: from x and a weight to y, linear in each.
    rows : int
        Number B of rows.
    row_axes : (int, int)
        Their axis in x and in y.
    in_axes, out_axes : tuple of (label, axis)
        Axes of the weight that belong to an axis of x (and are summed over), or of y; a label
        names an axis of the site's value.
    positions : int
        Number of places of one row, such as the pixels of an image, at which the same weight is
        applied.
    """

    site: str
    x: Any
    draw: NormalDraw
    apply: Callable[[Any, Any], Any]
    rows: int
    row_axes: tuple[int, int]
    in_axes: tuple[tuple[Any, int], ...]
    out_axes: tuple[tuple[Any, int], ...]
    positions: int


@documents_subclasses
class RowNoise(ABC):
    """What takes the place of linear operations in one run of a model."""

    #: Name in messages.
    name: str

    @abstractmethod
    def __call__(self, use: LinearUse) -> Any:
        """The operation's result, with noise of its own in each row."""


@documents_subclasses
class RowNoiseShell:
    """An objective of the host in which linear operations of the model have noise by row.

    Parameters
    ----------
    elbo : Trace_ELBO, TraceMeanField_ELBO or TraceGraph_ELBO
        The host's objective.
    noise : callable
        Makes the :class:`RowNoise` of one run, in NumPyro from a random key.
    sites : collection of str, optional
        Weights that must be met in linear operations. Default: whichever are.

    Raises
    ------
    ArgumentError
        The objective is another one, or takes several draws of the guide in one run of the model.
    """

    #: Objectives that are linear in the log likelihood: only then is the same distribution of each
    #: row enough for the same expectation.
    objectives: tuple[type, ...] = ()

    def _wrap(
        self, elbo: Any, noise: Callable[..., RowNoise], sites: Collection[str] | None, several: str
    ) -> None:
        """Keep the options; ``several`` says how the objective takes several draws, if it does."""
        if type(elbo) not in self.objectives or several:
            raise ArgumentError(
                "Expected an objective that is linear in the log likelihood, one of "
                f"{', '.join(kind.__name__ for kind in self.objectives)} with a draw of the guide "
                f"at a time, found {elbo!r}{several}. Under another objective noise by row would "
                "change what is maximised; pass that objective to SVI as it is."
            )
        if isinstance(sites, str):
            raise ArgumentError(f"Expected sites to be a list of names, found {sites!r}.")
        self.elbo = elbo
        self.sites = None if sites is None else frozenset(sites)
        self._noise = noise


class WeightUses:
    """The uses of weights in one run of a model: those that get noise by row, and all others."""

    def __init__(self, noise: RowNoise) -> None:
        self._noise = noise
        self._uses: dict[str, list[LinearUse]] = {}
        self._plain_uses: dict[str, set[str]] = {}

    def _note_plain(self, site: str, use: str) -> None:
        self._plain_uses.setdefault(site, set()).add(use)

    def _replace(self, use: LinearUse) -> Any:
        """The result that takes the place of a linear operation's."""
        self._uses.setdefault(use.site, []).append(use)
        return self._noise(use)

    def _no_normal(self, site: str, kind: str) -> ArgumentError:
        return ArgumentError(
            f"Expected the weights of linear operations to be drawn from a factorised Normal, "
            f"found {site!r} from {kind}. Use a mean-field guide such as "
            f"AutoNormal or AutoDiagonalNormal, or name in {self._noise.name}(elbo, sites=...) "
            "those weights that have one."
        )

    def _check(
        self,
        weights: Collection[str],
        sites: Collection[str] | None,
        shapes: Iterable[tuple[int, ...]],
    ) -> None:
        """See that what was asked for has happened, and that it was sound.

        Raises
        ------
        ArgumentError
            It was not.
        """
        self._check_met(weights, sites)
        self._check_alone()
        self._check_rows(shapes)

    def _check_met(self, weights: Collection[str], sites: Collection[str] | None) -> None:
        """See that the weights that were asked for, or any, were met in a linear operation."""
        missed = sorted(set(weights if sites is None else sites) - set(self._uses))
        if self._uses and (sites is None or not missed):
            return
        wanted = "at least one latent site" if sites is None else f"each of {missed}"
        found = {site: sorted(self._plain_uses.get(site, ())) for site in missed}
        raise ArgumentError(
            f"Expected {wanted} in a matrix product or convolution with rows of data along the "
            f"first axis, found {found} (where each is used). {self._noise.name} would leave them "
            "as they are: apply the weight itself, as in x @ w, or name other sites."
        )

    def _check_alone(self) -> None:
        """See that no weight is used with noise by row in one place and without it in another."""
        for site in self._uses:
            if plain := self._plain_uses.get(site):
                raise ArgumentError(
                    f"Expected {site!r} in linear operations only, found it in {sorted(plain)} "
                    f"too. There it would be one draw for all rows, which {self._noise.name} "
                    "cannot know from the others. Name the other sites in sites=."
                )

    def _check_rows(self, shapes: Iterable[tuple[int, ...]]) -> None:
        """See that the rows of linear operations can be the rows of an observed site."""
        lengths = {length for shape in shapes for length in shape}
        for use in itertools.chain.from_iterable(self._uses.values()):
            if lengths and use.rows not in lengths:
                raise ArgumentError(
                    f"Expected the first axis of what {use.site!r} is applied to, of length "
                    f"{use.rows}, to be the rows of the data, found observed sites with axes of "
                    f"lengths {sorted(lengths)}. {self._noise.name} is sound only for rows that "
                    "are independent given the weights; name the other sites in sites=."
                )


#: Distributions that change another's batch shape, mask or event alone; in both hosts.
_WRAPPERS = frozenset({"Independent", "ExpandedDistribution", "MaskedDistribution"})


def _is_wrapped(fn: Any) -> bool:
    return any(kind.__name__ in _WRAPPERS for kind in type(fn).__mro__)


def base_distribution(fn: Any) -> Any:
    """A distribution without the wrappers that change its batch shape, mask or event alone."""
    while _is_wrapped(fn):
        fn = fn.base_dist
    return fn


def kind_of(fn: Any) -> str:
    """Name of the class of a distribution without its wrappers."""
    return type(base_distribution(fn)).__name__


def row_shape(fn: Any) -> tuple[int, ...]:
    """Axes over which the log density of an observed distribution is a sum."""
    shape = tuple(fn.batch_shape)
    while _is_wrapped(fn):
        fn = fn.base_dist
        shape += tuple(fn.batch_shape)
    return shape


def check_latent(name: str, sites: Collection[str] | None, latent: Collection[str]) -> None:
    """See that the sites that were asked for are latent sites of the model.

    Raises
    ------
    ArgumentError
        They are not.
    """
    if unknown := sorted(set(sites or ()) - set(latent)):
        raise ArgumentError(
            f"Expected the names of latent sites for {name}, found {unknown}. The model has "
            f"{sorted(latent)}."
        )


def check_drawn(name: str, site: str, drawn: Any, value: Any) -> None:
    """See that a model was run with the guide's draw of a site.

    Raises
    ------
    ArgumentError
        It was not.
    """
    # By identity: an equal value of another array is not what the guide's Normal gave.
    if drawn is not value:
        raise ArgumentError(
            f"Expected the model to be run with the guide's draws, found another value of "
            f"{site!r}. Pass {name}(elbo) to SVI as its loss."
        )
