"""The posterior of an ArviZ object: its numbers by name, a table of them, and ArviZ's pictures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_number

if TYPE_CHECKING:
    import pandas as pd

#: Groups of ArviZ that a table of the posterior does without.
POSTERIOR_ALONE = dict.fromkeys(
    (
        *("posterior_predictive", "log_likelihood", "log_prior", "observed_data"),
        *("sample_stats", "constant_data"),
    ),
    False,
)
#: ArviZ's functions by kind of picture, in ArviZ 0 and from ArviZ 1 on.
_PICTURES = {
    "posterior": ("plot_posterior", "plot_dist"),
    "trace": ("plot_trace", "plot_trace_dist"),
    "forest": ("plot_forest", "plot_forest"),
    "pair": ("plot_pair", "plot_pair"),
    "predictive": ("plot_ppc", "plot_ppc_dist"),
}
KINDS = (*_PICTURES, "history")

#: Draws of each variable, and the names of its numbers.
Numbers = tuple[dict[str, Shaped[np.ndarray, "S ..."]], dict[str, list[str]]]
#: Of a number's name and its draws: mean and standard deviation, and what they are worth, as the
#: six last columns of :func:`table` but in the order mean, sd, mcse_mean, mcse_sd, ...
Figures = Callable[[str, Float[np.ndarray, " S"]], Sequence[float]]


def numbers_of(posterior: Any) -> Numbers:
    """Draws of the variables of a group, and the names of their numbers, by the labels of axes."""
    arrays = {str(name): posterior[name] for name in posterior.data_vars}
    values = {n: _joined_chains(each.values) for n, each in arrays.items()}
    axes = {n: [each[axis].values for axis in each.dims[2:]] for n, each in arrays.items()}
    return values, {name: list(_names(name, axes[name])) for name in values}


def numbers_of_draws(
    draws: Mapping[str, Any], labels: Mapping[str, Sequence[Sequence[Any]]]
) -> Numbers:
    """The same of draws by site, by the labels of those that have some, or places along axes."""
    values = {name: np.asarray(value) for name, value in draws.items()}
    axes = {
        name: labels.get(name, [np.arange(n) for n in value.shape[1:]])
        for name, value in values.items()
    }
    return values, {name: list(_names(name, axes[name])) for name in values}


def _names(name: str, axes: Sequence[Any]) -> Iterator[str]:
    for labels in itertools.product(*axes):
        yield f"{name}[{', '.join(map(str, labels))}]" if axes else name


def table(
    numbers: Numbers, sites: Sequence[str] | None, probability: float, figures: Figures
) -> pd.DataFrame:
    """Figures of each number, a row each.

    Raises
    ------
    ArgumentError
        There is no such site, or the probability is none.
    """
    import pandas as pd

    check_number("probability", probability, most=0.999)
    ends = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
    values, labels = numbers
    chosen = list(values) if sites is None else [sites] if isinstance(sites, str) else list(sites)
    if unknown := [name for name in chosen if name not in values]:
        raise ArgumentError(f"Expected some of the sites {list(values)}, found {unknown}.")
    names, rows = [], []
    for name in chosen:
        flat = values[name].reshape(len(values[name]), -1)
        if flat.dtype == bool:
            flat = flat.astype(float)  # NumPy has no quantiles of booleans.
        for column, row in zip(flat.T, labels[name], strict=True):
            mean, sd, *worth = figures(row, column)
            names.append(row)
            rows.append([mean, sd, *np.quantile(column, ends), *worth])
    columns = ["mean", "sd", *(f"{100 * end:.4g}%" for end in ends), "mcse_mean", "mcse_sd"]
    columns += ["ess_bulk", "ess_tail", "r_hat"]
    return pd.DataFrame(np.reshape(rows, (-1, len(columns))), index=names, columns=columns)


def variable(posterior: Any, name: str) -> Shaped[np.ndarray, "S ..."]:
    """Draws of one variable of a group.

    Raises
    ------
    ArgumentError
        There is none of this name.
    """
    if name not in posterior:
        known = list(posterior.data_vars)
        raise ArgumentError(f"Expected one of the sites {known}, found {name!r}.")
    return _joined_chains(posterior[name].values)


def _joined_chains(values: Shaped[np.ndarray, "C S ..."]) -> Shaped[np.ndarray, "S ..."]:
    chains, draws, *shape = values.shape
    return values.reshape(chains * draws, *shape)


def picture(kind: str, arviz_of: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """ArviZ's picture of a kind, but "history", of the groups that it needs.

    Raises
    ------
    ArgumentError
        ArviZ refuses so many panels.
    """
    import arviz

    own, later = _PICTURES[kind]
    draw: Callable[..., Any] = getattr(arviz, own if hasattr(arviz, own) else later)
    groups = dict(POSTERIOR_ALONE)
    if kind == "predictive":
        groups |= {"posterior_predictive": True, "observed_data": True}
    given = arviz_of(**groups)
    try:
        return draw(given, **options)
    except ValueError as error:
        if "max_subplots" not in str(error):
            raise
        raise ArgumentError(
            f"Expected a picture of fewer panels, found what ArviZ refuses: {error} Type "
            f"plot({kind!r}, var_names=[{next(iter(given['posterior'].data_vars))!r}]), with the "
            "variables that you want."
        ) from error
