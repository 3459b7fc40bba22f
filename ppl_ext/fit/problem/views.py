"""What a fit keeps of its program: its arguments, names of axes, and how to look at its draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ppl_ext.diagnostics.inference_data import by_name, listed


@dataclass(frozen=True)
class Names:
    """Names of axes, and labels along them.

    Attributes
    ----------
    dims : mapping of str to sequence of str
        Of a variable, without chain and draw.
    coords : mapping of str to sequence
        Along an axis.
    labels : mapping of str to sequence of sequence
        Of each latent and deterministic site the labels along its axes, where these are known
        before there are draws.
    """

    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether a user has given any."""
        return bool(self.dims or self.coords)


def axis_names(dims: Any, coords: Any) -> Names:
    """Names of axes as a user gives them, checked before anything is computed.

    Raises
    ------
    ArgumentError
        They are no mappings to lists.
    """
    found = {
        what: {name: listed(what, name, each) for name, each in by_name(what, given).items()}
        for what, given in (("dims", dims), ("coords", coords))
    }
    return Names(**found)


#: No names but the plates'.
NO_NAMES = Names()


@dataclass(frozen=True)
class Views:
    """The arguments of a fit, and what the package that made it computes of its draws.

    Attributes
    ----------
    args, kwargs
        The model's arguments, as they were given.
    to_arviz : callable
        Of a fit and options of the package's ``to_arviz``: the ArviZ object.
    predict : callable
        Of draws by site, the model's arguments, a seed, the arguments of the fit, which tell what
        the others have to be, and the sites that are wanted: values (S, ...) of each.
    names : Names
    batches : iterable, optional
        The loader that the rows came from, in place of ``args``.
    predictor : callable, optional
        Of draws by site, the model's arguments and ``site=``: what gives the predictive
        distribution at such draws.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    to_arviz: Callable[..., Any]
    predict: Callable[..., dict[str, np.ndarray]]
    names: Names
    batches: Iterable[Any] | None = None
    predictor: Callable[..., Any] | None = None
