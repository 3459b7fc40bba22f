"""How a fit is looked at: a table of its figures, ArviZ, predictions, pictures and a notebook."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Shaped

from ppl_ext.diagnostics.tables import block, paragraph
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.figures import site_figures
from ppl_ext.fit.verdict import STAGES, Stage, Verdict
from ppl_ext.fit.views import Views
from ppl_ext.options import check_choice, check_number

if TYPE_CHECKING:
    import pandas as pd


#: Groups of ArviZ that a table of the posterior does without.
_POSTERIOR_ALONE = dict.fromkeys(
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


class Fit(Protocol):
    """What is looked at of a :class:`~ppl_ext.fit.fit.Fit`, which stands above this file."""

    draws: dict[str, Any]
    verdict: Verdict
    num_chains: int

    @property
    def views(self) -> Views | None: ...
    @property
    def climbed(self) -> Any: ...
    @property
    def has_program(self) -> bool: ...
    @property
    def ordered_draws(self) -> dict[str, Any]: ...
    @property
    def history(self) -> tuple[Stage, ...]: ...
    def check_data(self) -> None: ...
    def predict(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
    def get_samples(self, *_: Any, num_samples: int | None = None, **__: Any) -> dict[str, Any]: ...


def as_arviz(fit: Fit, **options: Any) -> Any:
    """A fit for ArviZ, with the arguments, names and labels that it has."""
    views = _views(fit)
    fit.check_data()
    return views.to_arviz(
        fit, **{"dims": views.names.dims, "coords": views.names.coords, **options}
    )


def _views(fit: Fit) -> Views:
    views = fit.views
    if views is None:
        raise ArgumentError(
            "Expected a fit that knows its arguments, found one that was made by hand. Call "
            "to_arviz(fit, *args) with the model's arguments."
        )
    return views


def _ordered(fit: Fit) -> Fit:
    """The fit with labels that can be exchanged in order."""
    if fit.climbed.symmetry is None:
        return fit
    other = copy.copy(fit)
    other.draws = fit.ordered_draws
    return other


def values_of(fit: Fit, name: str) -> Shaped[np.ndarray, "S ..."]:
    """Draws of a latent or deterministic site."""
    if name in fit.draws:
        value = fit.draws[name]
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    known = list(fit.draws)
    if fit.has_program and fit.views is not None:
        posterior = as_arviz(fit, **_POSTERIOR_ALONE)["posterior"]
        if name in posterior:
            found = posterior[name].values
            return found.reshape(-1, *found.shape[2:])
        known = list(posterior.data_vars)
    raise ArgumentError(f"Expected one of the sites {known}, found {name!r}.")


def summary(fit: Fit, sites: Sequence[str] | None, probability: float) -> pd.DataFrame:
    """Figures of each number of a fit's sites, a row each."""
    import pandas as pd

    check_number("probability", probability, most=0.999)
    ends = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
    values, labels = _values_and_labels(fit)
    chosen = list(values) if sites is None else [sites] if isinstance(sites, str) else list(sites)
    unknown = [name for name in chosen if name not in values]
    if unknown:
        raise ArgumentError(f"Expected some of the sites {list(values)}, found {unknown}.")
    names, rows = [], []
    trusted = fit.verdict.trusted
    number = len(next(iter(fit.draws.values())))
    worth = [site.ess_bulk for site in fit.verdict.by_site.values()]
    share = min([1.0, *(each / number for each in worth)])
    for name in chosen:
        flat = values[name].reshape(len(values[name]), -1)
        for column, row in zip(flat.T, labels[name], strict=True):
            figures = site_figures(row, column, fit.num_chains, share)
            (value,) = figures.values
            names.append(row)
            errors = (value.mean_error, value.sd_error) if trusted else (np.nan, np.nan)
            if figures.is_heavy:
                errors = (errors[0], np.nan)
            rows.append(
                [
                    *(value.mean, value.sd, *np.quantile(column, ends), *errors),
                    *(value.ess_bulk, value.ess_tail, value.r_hat),
                ]
            )
    columns = ["mean", "sd", *(f"{100 * end:.4g}%" for end in ends), "mcse_mean", "mcse_sd"]
    columns += ["ess_bulk", "ess_tail", "r_hat"]
    return pd.DataFrame(np.reshape(rows, (-1, len(columns))), index=names, columns=columns)


def _values_and_labels(
    fit: Fit,
) -> tuple[dict[str, Shaped[np.ndarray, "S ..."]], dict[str, list[str]]]:
    """Draws by site, deterministic ones among them, and the names of their numbers."""
    if fit.has_program and fit.views is not None:
        found = as_arviz(_ordered(fit), **_POSTERIOR_ALONE)["posterior"]
        arrays = {str(name): found[name] for name in found.data_vars}
        values = {n: each.values.reshape(-1, *each.shape[2:]) for n, each in arrays.items()}
        axes = {n: [each[axis].values for axis in each.dims[2:]] for n, each in arrays.items()}
    else:
        values = {name: np.asarray(value) for name, value in fit.draws.items()}
        axes = {name: [np.arange(n) for n in value.shape[1:]] for name, value in values.items()}
    return values, {name: list(_names(name, axes[name])) for name in values}


def _names(name: str, axes: Sequence[Any]) -> Iterator[str]:
    for labels in itertools.product(*axes):
        yield f"{name}[{', '.join(map(str, labels))}]" if axes else name


def predicted(
    fit: Fit,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    num_samples: int | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """New values of the observed sites at the draws of a fit."""
    views = _views(fit)
    if not args and not kwargs:
        if views.batches is not None:
            raise ArgumentError(
                "Expected the model's arguments, found none, of a fit whose rows came from a "
                "loader. Call fit.predict(*args) with the rows to predict."
            )
        fit.check_data()
        args, kwargs = views.args, views.kwargs
    return views.predict(fit.get_samples(num_samples=num_samples), args, kwargs, seed)


def plot(fit: Fit, kind: str, options: Mapping[str, Any]) -> Any:
    """A picture of a fit."""
    check_choice("kind", kind, KINDS)
    if kind == "history":
        return _history(fit, **options)
    import arviz

    own, later = _PICTURES[kind]
    draw: Callable[..., Any] = getattr(arviz, own if hasattr(arviz, own) else later)
    groups = dict(_POSTERIOR_ALONE)
    if kind == "predictive":
        groups |= {"posterior_predictive": True, "observed_data": True}
    return draw(as_arviz(_ordered(fit), **groups), **options)


def _history(fit: Fit, ax: Any = None) -> Any:
    """Evaluations of each stage."""
    from ppl_ext.diagnostics.plots import plt_or_error

    axes = plt_or_error().subplots(layout="constrained")[1] if ax is None else ax
    stages = fit.history
    axes.barh(range(len(stages)), [stage.evaluations for stage in stages])
    axes.set_yticks(range(len(stages)), [STAGES.get(each.name, each.name) for each in stages])
    axes.invert_yaxis()
    axes.set_xlabel("evaluations of the score")
    return axes


def fit_page(fit: Fit) -> str:
    """A fit in a notebook."""
    number = len(next(iter(fit.draws.values())))
    sites = ", ".join(
        f"{name} {list(np.shape(value)[1:]) or ''}".strip() for name, value in fit.draws.items()
    )
    return block(paragraph(f"{number:,} draws of {sites}"), fit.verdict._repr_html_())


__all__ = ["KINDS", "as_arviz", "fit_page", "plot", "predicted", "summary", "values_of"]
