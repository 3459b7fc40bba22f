"""How a fit is looked at: a table of its figures, ArviZ, predictions, pictures and a notebook."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float, Shaped

from ppl_ext.arguments import named_arrays
from ppl_ext.diagnostics.posterior import (
    KINDS,
    POSTERIOR_ALONE,
    numbers_of,
    numbers_of_draws,
    picture,
    table,
    variable,
)
from ppl_ext.diagnostics.tables import block, paragraph
from ppl_ext.errors import ArgumentError, DataWarning
from ppl_ext.fit.problem.views import Views
from ppl_ext.fit.verdict.figures import site_figures
from ppl_ext.fit.verdict.verdict import STAGES, Stage, Verdict
from ppl_ext.options import check_choice, described
from ppl_ext.target.on_host import on_host

if TYPE_CHECKING:
    import pandas as pd


class Fit(Protocol):
    """What is looked at of a :class:`~ppl_ext.fit.fit.Fit`, which stands above this file."""

    draws: dict[str, Any]
    verdict: Verdict
    num_chains: int

    @property
    def views(self) -> Views | None: ...
    @property
    def labels(self) -> Mapping[str, Sequence[Sequence[Any]]]: ...
    @property
    def climbed(self) -> Any: ...
    @property
    def has_program(self) -> bool: ...
    @property
    def ordered_draws(self) -> dict[str, Any]: ...
    @property
    def history(self) -> tuple[Stage, ...]: ...
    def check_data(self) -> None: ...
    def has_same_program(self) -> bool: ...
    def predict(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
    def get_samples(self, *_: Any, num_samples: int | None = None, **__: Any) -> dict[str, Any]: ...


def as_arviz(fit: Fit, **options: Any) -> Any:
    """A fit for ArviZ, with the arguments, names and labels that it has."""
    views = _views(fit)
    fit.check_data()
    return views.to_arviz(
        fit, **{"dims": views.names.dims, "coords": views.names.coords, **options}
    )


def check_options(fit: Fit, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """See that ``fit.to_arviz`` gets options of the package's, and no arguments of a model.

    Raises
    ------
    ArgumentError
        It gets others.
    """
    known = set(inspect.signature(_views(fit).to_arviz).parameters)
    others = sorted(options.keys() - known)
    if args or others:
        found = [*(described(each) for each in args), *(f"{name}=" for name in others)]
        raise ArgumentError(
            "Expected options of to_arviz, whose rows are those that were fitted, found "
            f"{', '.join(found)}. Type fit.to_arviz(), fit.predict(x_new) for other rows, or "
            "fit.refit(*args) to fit them."
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
    other = copy.copy(fit)
    other.draws = fit.ordered_draws
    return other


def values_of(fit: Fit, name: str) -> Shaped[np.ndarray, "S ..."]:
    """Draws of a latent or deterministic site."""
    if name in fit.draws:
        return np.asarray(on_host(fit.draws[name]))
    if fit.has_program and fit.views is not None:
        return variable(as_arviz(fit, **POSTERIOR_ALONE)["posterior"], name)
    raise ArgumentError(f"Expected one of the sites {list(fit.draws)}, found {name!r}.")


def summary(fit: Fit, sites: Sequence[str] | None, probability: float) -> pd.DataFrame:
    """Figures of each number of a fit's sites, a row each."""
    trusted = fit.verdict.trusted
    number = len(next(iter(fit.draws.values())))
    worth = [site.ess_bulk for site in fit.verdict.by_site.values()]
    share = min([1.0, *(each / number for each in worth)])

    def figures(row: str, column: Float[np.ndarray, " S"]) -> Sequence[float]:
        found = site_figures(row, column, fit.num_chains, share)
        (value,) = found.values
        errors = (value.mean_error, value.sd_error) if trusted else (np.nan, np.nan)
        if found.is_heavy:
            errors = (errors[0], np.nan)
        return value.mean, value.sd, *errors, value.ess_bulk, value.ess_tail, value.r_hat

    if fit.has_program and fit.views is not None:
        numbers = numbers_of(as_arviz(_ordered(fit), **POSTERIOR_ALONE)["posterior"])
    else:
        numbers = numbers_of_draws(fit.ordered_draws, fit.labels)
    return table(numbers, sites, probability, figures)


def predicted(
    fit: Fit,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    num_samples: int | None,
    seed: int,
    return_sites: Collection[str] | None,
) -> dict[str, np.ndarray]:
    """New values of the observed sites at the draws of a fit, and of deterministic ones."""
    views = _views(fit)
    if not args and not kwargs:
        if views.batches is not None:
            raise ArgumentError(
                "Expected the model's arguments, found none, of a fit whose rows came from a "
                "loader. Call fit.predict(*args) with the rows to predict."
            )
        fit.check_data()
        args, kwargs = views.args, views.kwargs
    elif not fit.has_same_program():
        # It may read the number of the rows to predict.
        warnings.warn(
            "What the program reads beside its arguments, or the precision, was changed since the "
            "fit: predictions are by the new values, with draws given the old ones. Fit again, or "
            "pass what is to change as an argument.",
            DataWarning,
            stacklevel=3,
        )
    draws = fit.get_samples(num_samples=num_samples)
    try:
        return views.predict(draws, args, kwargs, seed, (views.args, views.kwargs), return_sites)
    except Exception as error:
        # An error of the model's own, such as of a matrix with other columns, names no argument.
        for told in _of_other_shapes(views, args, kwargs):
            error.add_note(told)
        raise


def _of_other_shapes(views: Views, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Which arrays differ from those of the fit by more than the number of their rows."""
    fitted, given = _shapes(views.args, views.kwargs), _shapes(args, kwargs)
    return [
        f"Argument {name} has shape {shape}, and had {fitted[name]} in the fit."
        for name, shape in given.items()
        if name in fitted and (len(shape), shape[1:]) != (len(fitted[name]), fitted[name][1:])
    ]


def _shapes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(np.shape(each)) for name, each in named_arrays(None, args, kwargs)}


def plot(fit: Fit, kind: str, options: Mapping[str, Any]) -> Any:
    """A picture of a fit."""
    check_choice("kind", kind, KINDS)
    if kind == "history":
        return _history(fit, **options)
    return picture(kind, lambda **groups: as_arviz(_ordered(fit), **groups), options)


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
