"""Predictive distributions of rows as an xarray dataset, and the mixture over its draws.

The predictive distribution of a row is the equal mixture, over S draws of the parameters, of the
observed site's distributions. Everything that judges it starts from the dataset made here, whose
coordinate ``row`` numbers the rows; those that are masked out are not in it.

==================  ============================  ============================================
variable            dimensions                    meaning
==================  ============================  ============================================
``log_likelihood``  draw, row                     log density of the observed row
``observed``        row [, output]                observed value, or class
``probabilities``   draw, row [, output], class   class probabilities
``mean``            draw, row [, output]          mean of the distribution
``variance``        draw, row [, output]          its variance
``cdf``             draw, row [, output]          distribution function at the observed value
a discrete site     draw, row, or its own         its values, where they were asked for
a deterministic     draw, row, or its own         its values, but for ``return_sites=[]``
==================  ============================  ============================================

A dataset has either ``probabilities`` (classification) or ``mean`` and ``variance`` (regression);
``log_likelihood``, ``observed`` and ``cdf`` are there when the observations are;
``log_likelihood`` is not where rows share a discrete latent site, which is summed out. ``output``
runs over the elements of one observation (``to_event``), which its log density adds up.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray

from ppl_ext.diagnostics.replay import (
    DISCRETE,
    Replay,
    SiteDescription,
    told_of_filled,
    told_of_outside,
)
from ppl_ext.errors import ArgumentError, DataWarning
from ppl_ext.options import check_choice, described
from ppl_ext.target.discrete import Run, dependents

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

Array = NDArray[Any]

#: Variables and dimensions of a dataset.
NAMES = (
    *("log_likelihood", "observed", "probabilities", "mean", "variance", "cdf"),
    *("draw", "row", "output", "class"),
)

#: Further runs that show whether a value is computed from one that is missing.
_VALUES_COMPARED = 4
#: Probabilities below this count as this: single precision has none that is nearer to 1.
_LEAST_PROBABILITY = 1e-7


def returned_sites(
    replay: Callable[..., Replay],
    draws: Mapping[str, Any],
    observing: Any,
    names: Collection[str] | None,
) -> dict[str, Array]:
    """What a prediction returns: values by site, in the order of the program.

    Parameters
    ----------
    replay : callable
        At draws.
    draws : mapping of str to array
        Of the latent sites, which are returned where they are named.
    observing : ObserveMissing
        What observed sites without values have had.
    names : collection of str, optional
        Default: sites with new values, and deterministic ones.

    Raises
    ------
    ArgumentError
        There is no such site.
    """
    replayed = replay(
        draws=draws,
        groups=("predictive", "alongside"),
        missing=observing.missing,
        finite=observing.finite,
        all_rows=False,
    )
    new = {**replayed.predictive, **replayed.alongside}
    given = {name: np.asarray(draws[name]) for name in draws if name in replayed.sites}
    new |= {name: at for name, at in given.items() if replayed.sites[name].kind == "discrete"}
    check_return_sites(names, {*new, *draws})
    if names is None:
        return {name: new[name] for name in replayed.sites if name in new}
    of_each = {**{name: np.asarray(value) for name, value in draws.items()}, **new}
    return {name: of_each[name] for name in names}


def check_return_sites(names: Collection[str] | None, sites: Collection[str]) -> None:
    """See that the sites that are wanted are a list of names that there are.

    Raises
    ------
    ArgumentError
        They are not.
    """
    if isinstance(names, str):
        raise ArgumentError(
            "Expected return_sites as a list of names, found one name. Write "
            f"return_sites=[{names!r}]."
        )
    if unknown := [name for name in names or () if name not in sites]:
        raise ArgumentError(f"Expected return_sites of {sorted(sites)}, found {unknown}.")


def draws_of_fit(draws: Any, linearize: Any, *given: Any, **options: Any) -> tuple[Any, Any]:
    """Draws by site, and the constrained values that the model is made linear at, or None.

    Parameters
    ----------
    draws : mapping, engine or fit
    linearize : bool or mapping
    *given
        What ``mode`` of an engine takes.
    **options
        What ``get_samples`` takes besides.

    Raises
    ------
    ArgumentError
        There are no draws, or no values to be linear at.
    """
    at = linearize if isinstance(linearize, Mapping) else None
    if at is None and not isinstance(linearize, bool):
        raise ArgumentError(
            "Expected linearize to be True, False or the constrained values of the latent sites to "
            f"be linear at, found {described(linearize)}."
        )
    if linearize is True:
        if not hasattr(draws, "mode"):
            raise ArgumentError(
                "Expected an engine with a mode, LaplaceGGN, in place of the draws to be linear "
                f"at, found {described(draws)}. For other draws pass the values to be linear at, "
                "such as a guide's median: linearize={'w': ...}."
            )
        at = draws.mode(*given)
    asked = {name: value for name, value in options.items() if value is not None}
    taken: dict[str, Any] = {}
    if hasattr(draws, "get_samples"):
        parameters = inspect.signature(draws.get_samples).parameters
        is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        taken = {name: each for name, each in asked.items() if is_open or name in parameters}
    if "num_samples" in asked and "num_samples" not in taken:
        raise ArgumentError(
            f"Expected no num_samples with {described(draws)}, whose draws are made, found "
            f"{asked['num_samples']}. Pass fewer draws, or an engine or a fit in their place."
        )
    if hasattr(draws, "get_samples"):
        draws = draws.get_samples(*given, **taken)
    return draws, at


def site_predictor(
    site: str | None,
    draws: Mapping[str, Any],
    observed: Callable[[Collection[str]], tuple[Any, Any, Any]],
    computed_sites: Callable[..., Any],
    run: Callable[[Mapping[str, Any], int], Run],
    replay: Callable[..., Replay],
) -> Callable[..., Dataset]:
    """What predicts a site at draws of the same sites as these: the model is looked at once.

    Parameters
    ----------
    observed : callable
        Of the names of sites that have draws: a target, its data, and what it observes.
    computed_sites : callable
        Sites that the target computes of its data and draws.
    run : callable
        As :func:`ppl_ext.target.discrete.dependents` takes it.
    replay : callable
        The package's.

    Returns
    -------
    callable
        Of draws, ``discrete``, ``return_sites`` and options of the replay.
    """
    target, data, observing = observed(draws)
    # The first and the last draw: a dependence may show at one of them only.
    few = {0, len(next(iter(draws.values()))) - 1}
    some = [{name: draws[name][place] for name in target.layout.names} for place in few]
    unseen = Unseen(list(observing.missing), list(observing.missing), some, run)
    computed = partial(computed_sites, target, data, draws)
    name, latents = site_to_predict(
        site, target.observed_sites, unseen.every, observing.finite, computed, unseen.dependents
    )
    if latents:
        target, data, observing = observed({*draws, *latents})
        unseen = replace(unseen, missing=list(observing.missing))

    def predict(
        draws: Mapping[str, Any],
        discrete: str | None = None,
        return_sites: Collection[str] | None = None,
        **options: Any,
    ) -> Dataset:
        at_draws = partial(replay, target, data=data, **options)
        return predicted_site(name, target, unseen, draws, discrete, return_sites, at_draws)

    return predict


@dataclass(frozen=True)
class Unseen:
    """Sites of a program that have neither draws nor observations.

    Attributes
    ----------
    every, missing : list of str
        All of them, and those that are no discrete latent sites.
    values : sequence of mapping of str to array
        Some draws of the latent sites.
    run : callable
        As :func:`ppl_ext.target.discrete.dependents` takes it.
    """

    every: list[str]
    missing: list[str]
    values: Sequence[Mapping[str, Any]]
    run: Callable[[Mapping[str, Any], int], Run]

    def dependents(self, site: str) -> set[str] | None:
        """Which sites have a density that depends on the value of one of them, if that is known."""
        return dependents(site, self.every, self.values, self.run)

    def made_of_missing(self, sites: Sequence[SiteDescription]) -> set[str]:
        """Which deterministic sites are computed from values that are missing."""
        names = [site.name for site in sites]
        first = min((names.index(name) for name in self.missing if name in names), default=None)
        later = [] if first is None else [each for each in sites[first:] if is_value(each)]
        if not later:
            return set()
        at = self.values[0]
        drawn = self.run(at, 0)
        at = {**at, **{name: drawn[name][0] for name in self.every if name not in self.missing}}
        runs = [self.run(at, seed) for seed in range(1 + _VALUES_COMPARED)]
        return {
            name
            for name in (site.name for site in later)
            for other in runs[1:]
            if not np.array_equal(runs[0][name][0], other[name][0], equal_nan=True)
        }


def is_value(site: SiteDescription) -> bool:
    """Whether a site has a value that is computed, and no distribution."""
    return site.kind == "deterministic"


def predicted_site(
    site: str,
    target: Any,
    unseen: Unseen,
    draws: Mapping[str, Any],
    discrete: str | None,
    return_sites: Collection[str] | None,
    replay: Callable[..., Replay],
) -> Dataset:
    """The dataset of a site.

    ``replay`` is the package's, of this target.
    """
    check_choice("discrete", discrete, (None, *DISCRETE))
    missing = unseen.missing
    if discrete is not None and site in missing:
        place = target.observed_sites.index(site)
        later = [name for name in target.observed_sites[place + 1 :] if name not in missing]
        found = {name: unseen.dependents(name) for name in missing} if later else {}
        names = [
            name for name in later if any(each is None or name in each for each in found.values())
        ]
        if names:
            raise ArgumentError(
                f"Expected no observed site that depends on '{site}', which has no values, found "
                f"{names}: the discrete sites would be given observations of a value that only "
                f"stands in for it. Leave out discrete=..., pass the observations of '{site}', or "
                f"leave out those of {names}."
            )
    replayed = replay(
        draws={name: draws[name] for name in target.layout.names},
        groups=(
            "prediction",
            *(() if site in missing else ("log_likelihood", "observed")),
            *(() if discrete is None else ("discrete",)),
            *(() if return_sites is not None and not len(return_sites) else ("alongside",)),
        ),
        discrete=discrete or DISCRETE[0],
        missing=missing,
        all_rows=False,
    )
    if replayed.sites[site].kind == "computed":
        raise ArgumentError(
            f"Expected a site to predict, found '{site}', whose observed values are computed from "
            "latent sites: it is a prior of these, or written in a way that has no observations "
            f"of its own. Name another by site=..., of {list(target.observed_sites)}, or rewrite "
            "the model so that the site's observations are data."
        )
    if filled := told_of_filled({site: replayed.sites[site]}):
        warnings.warn(filled, DataWarning, stacklevel=2)
    if replayed.outside:
        raise ArgumentError(
            f"{told_of_outside(replayed.outside)} Pass constrained values, as get_samples returns "
            "them; look for chains that diverged."
        )
    return predictive_dataset(
        site,
        replayed.sites[site].batch_shape,
        {term: found[site] for term, found in replayed.prediction.items() if site in found},
        replayed.log_likelihood.get(site),
        replayed.observed.get(site),
        _in_rows(replayed, site, _alongside(replayed, unseen, return_sites)),
    )


def _alongside(
    replayed: Replay, unseen: Unseen, return_sites: Collection[str] | None
) -> dict[str, Array]:
    """Values of the deterministic sites that are wanted.

    Raises
    ------
    ArgumentError
        There is none of a name, or it is computed from values that are missing.
    """
    found = replayed.alongside
    check_return_sites(return_sites, found)
    if not found:
        return {}
    unknown = unseen.made_of_missing(list(replayed.sites.values()))
    if return_sites is None:
        others = {*unknown, *NAMES}
        return {n: v for n, v in found.items() if n not in others and is_value(replayed.sites[n])}
    if made := sorted(unknown.intersection(return_sites)):
        raise ArgumentError(
            f"Expected return_sites that do not depend on values to be predicted, found {made}. "
            "New values, and what is computed from them, are those of fit.predict(*args)."
        )
    return {name: found[name] for name in return_sites}


def _in_rows(
    replayed: Replay, site: str, alongside: Mapping[str, Array]
) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Values of discrete latent and deterministic sites and their dimensions.

    Raises
    ------
    ArgumentError
        One bears the name of something else.
    """
    found: dict[str, tuple[tuple[str, ...], Array]] = {}
    rows = replayed.sites[site]
    for name, values in {**replayed.discrete, **alongside}.items():
        if name in NAMES:
            raise ArgumentError(
                f"Expected sites with names of their own, found '{name}', which the dataset has "
                "for something else. Rename the site, or take its values from to_arviz."
            )
        own = replayed.sites[name]
        if own.shape == rows.batch_shape and own.plates == rows.batch_plates and own.shape:
            found[name] = (("draw", "row"), values.reshape(len(values), -1))
        else:
            dims = (f"{name}_dim_{axis}" for axis in range(len(own.shape)))
            found[name] = (("draw", *dims), values)
    return found


def site_to_predict(
    site: str | None,
    observed: Sequence[str],
    missing: Sequence[str],
    finite: Sequence[str],
    computed: Callable[[], Collection[str]],
    dependents: Callable[[str], set[str] | None],
) -> tuple[str, set[str]]:
    """The site that is meant, and which sites without values are discrete latent ones.

    Parameters
    ----------
    site : str or None
        What the caller named.
    observed : sequence of str
        Sites without draws, observed or not, in trace order.
    missing, finite : sequence of str
        Those of them that are not observed, and which of these have finitely many values.
    computed : callable
        Gives the observed sites whose values are computed from latent ones: priors of these.
    dependents : callable
        Sites whose density depends on the value of a missing one; None if that is not known.

    Raises
    ------
    ArgumentError
        There is no such site, several are possible, or sites before it have no draws.
    """
    if site is not None:
        if site not in observed:
            raise ArgumentError(
                f"Expected site to be one of {list(observed)}, which have no draws, found '{site}'."
            )
        latents = set(finite) - {site}
        before = [
            name
            for name in observed[: observed.index(site)]
            if name in missing and name not in latents
            if (of_name := dependents(name)) is None or site in of_name
        ]
        if before:
            raise ArgumentError(
                f"Expected draws of every site that '{site}' depends on, found none for {before}. "
                "Pass the dict that get_samples returns, or the observations of these sites."
            )
        return site, latents
    if not observed:
        raise ArgumentError(
            "Expected a model with an observed site, found none. Only sites with a "
            "distribution of their own can be predicted."
        )
    if len(observed) == 1:
        return observed[0], set()
    seen = [name for name in observed if name not in missing]
    if seen:
        priors = computed()
        seen = [name for name in seen if name not in priors]
    # What others depend on is a latent site, or may be one.
    used = [name for name in missing if dependents(name) != set()]
    latents = set(used).intersection(finite)
    if len(latents) < len(used):
        unknown = [name for name in missing if name not in latents]
        if seen:
            raise ArgumentError(
                f"Expected draws of every latent site or values of every observed one, found "
                f"neither for {unknown}. Name the one to predict by site=..., and pass the dict "
                "that get_samples returns for latent ones."
            )
        raise ArgumentError(
            f"Expected one site to predict, found {unknown} without draws. Name one by "
            "site=..., and pass draws of the latent ones."
        )
    found = [name for name in missing if name not in latents] or seen
    if len(found) != 1:
        raise ArgumentError(
            f"Expected one site to predict, found {found or 'none'} among {list(observed)}. Name "
            "it by site=..., and pass draws of the latent ones."
        )
    return found[0], latents


def predictive_dataset(
    site: str,
    batch_shape: tuple[int, ...],
    prediction: Mapping[str, Array],
    log_likelihood: Float[Array, "S ..."] | None,
    observed: Shaped[Array, "*shape"] | None,
    discrete: Mapping[str, tuple[tuple[str, ...], Array]] | None = None,
) -> Dataset:
    """The dataset of one observed site.

    Parameters
    ----------
    site : str
    batch_shape : tuple of int
        Shape of the site's independent rows, which become one axis in C order.
    prediction : mapping of str to array
        Probabilities (S, *shape, K), or mean, variance and cdf (S, *shape); ``mask`` (S, *shape)
        where some rows do not count.
    log_likelihood : array (S, *batch shape), optional
        In another shape it is not of rows, and is left out.
    observed : array (shape), optional
    discrete : mapping, optional
        Of discrete latent sites their dimensions and values.

    Raises
    ------
    ArgumentError
        The distribution has neither classes nor moments, or a mask hides part of a row.
    """
    import xarray

    rows = math.prod(batch_shape)
    variables: dict[str, tuple[tuple[str, ...], Array]] = {}
    outputs = 1
    for name in ("probabilities", "mean", "variance", "cdf"):
        if name not in prediction or (name == "cdf" and observed is None):
            continue
        values = prediction[name]
        last = values.shape[-1:] if name == "probabilities" else ()
        event = values.shape[1 + len(batch_shape) : values.ndim - len(last)]
        outputs = math.prod(event)
        dims = ("draw", "row", *(["output"] if event else []), *(["class"] if last else []))
        shape = (len(values), rows, *([outputs] if event else []), *last)
        variables[name] = (dims, values.reshape(shape))
    if "probabilities" not in variables and not {"mean", "variance"} <= set(variables):
        raise ArgumentError(
            f"Expected the distribution of site '{site}' to be Bernoulli or categorical, or to "
            "have a mean and a variance, found neither. Predict another site with site=..."
        )
    # Rows that share a discrete site have one likelihood together, and none each.
    if log_likelihood is not None and log_likelihood.shape[1:] == batch_shape:
        flat = log_likelihood.reshape(len(log_likelihood), rows)
        variables["log_likelihood"] = (("draw", "row"), flat)
    if observed is not None:
        split = observed.shape != batch_shape
        shape = (rows, outputs) if split else (rows,)
        variables["observed"] = (("row", "output") if split else ("row",), observed.reshape(shape))
    variables.update(discrete or {})
    attributes: dict[str, Any] = {"site": site}
    if len(batch_shape) > 1:
        attributes["row_shape"] = list(batch_shape)
    dataset = xarray.Dataset(variables, {"row": np.arange(rows)}, attributes)
    if "mask" not in prediction:
        return dataset
    # Rows count that do so at every draw: the others have no mixture.
    counts = prediction["mask"].all(0).reshape(rows, -1)
    if (counts.any(1) != counts.all(1)).any():
        raise ArgumentError(
            f"Expected the mask of site '{site}' to hide whole rows, found rows of which it hides "
            "a part. Declare the elements as rows of a plate instead of an event."
        )
    return dataset.isel(row=np.flatnonzero(counts.all(1)))


def is_classification(predictive: Dataset) -> bool:
    """Whether the dataset holds class probabilities; else it holds means and variances.

    Raises
    ------
    ArgumentError
        It holds neither.
    """
    names = set(getattr(predictive, "data_vars", ()))
    if "probabilities" in names:
        return True
    if {"mean", "variance"} <= names:
        return False
    raise ArgumentError(
        "Expected the dataset that predictive_distribution returns, found "
        f"{type(predictive).__name__} with {sorted(map(str, names))}."
    )


def require_observed(predictive: Dataset, purpose: str) -> None:
    """See that the observations are there.

    Raises
    ------
    ArgumentError
        They are not.
    """
    if "observed" not in predictive:
        raise ArgumentError(
            f"Expected the observations of site '{predictive.attrs.get('site')}' for {purpose}, "
            "found none. Pass them to predictive_distribution with the model's other arguments."
        )


def draws_first(predictive: Dataset, name: str) -> Shaped[Array, "S N ..."]:
    """A variable as an array with its draws first, its rows next, and its classes last."""
    dims = predictive[name].dims
    order = [dim for dim in ("draw", "row", "output", "class") if dim in dims]
    if "draw" not in dims or len(order) < len(dims):
        raise ArgumentError(
            f"Expected '{name}' by draw and row, as predictive_distribution gives it, found axes "
            f"{', '.join(map(str, dims))}. Stack chains and draws into one axis, 'draw'."
        )
    return np.asarray(predictive[name].transpose(*order).values)


def unbounded_outputs(predictive: Dataset) -> Iterator[tuple[str, Float[Array, "S K"]]]:
    """Numbers without bounds (S, K) that stand for the distributions of all rows, by kind.

    Of numbers the means and the logarithms of the standard deviations, once where all rows have
    one; of classes the logits less their mean, of the second alone where there are two.
    """

    def flat(values: Array) -> Array:
        return values.reshape(len(values), -1)

    if is_classification(predictive):
        probabilities = draws_first(predictive, "probabilities").astype(np.float64)
        logits = np.log(np.clip(probabilities, _LEAST_PROBABILITY, None))
        logits -= logits.mean(-1, keepdims=True)
        # The first of two classes is the other with its sign turned.
        yield "logits", flat(logits[..., 1:] if logits.shape[-1] == 2 else logits)
        return
    yield "mean", flat(draws_first(predictive, "mean").astype(np.float64))
    with np.errstate(all="ignore"):
        spread = flat(0.5 * np.log(draws_first(predictive, "variance").astype(np.float64)))
    if np.isfinite(spread).all():
        same = bool((spread == spread[:, :1]).all())
        yield "log sd", spread[:, :1] if same else spread


def mixture_log_likelihood(predictive: Dataset) -> Float[Array, " N"]:
    """Log density of each observed row (N,) under the mixture over draws.

    It is the logarithm of the draws' mean density, and not the mean of their log densities.
    """
    require_observed(predictive, "the log likelihood")
    if "log_likelihood" not in predictive:
        raise ArgumentError(
            f"Expected rows of site '{predictive.attrs.get('site')}' with a log likelihood each, "
            "found rows that share a discrete latent site. to_arviz has their log likelihood "
            "together."
        )
    log_likelihood = draws_first(predictive, "log_likelihood").astype(np.float64)
    return np.asarray(np.logaddexp.reduce(log_likelihood, axis=0) - np.log(len(log_likelihood)))


def mixture_probabilities(predictive: Dataset) -> Float[Array, "N ... K"]:
    """Class probabilities (N [, outputs], K) of the mixture over draws."""
    return np.asarray(draws_first(predictive, "probabilities").mean(0, dtype=np.float64))


def mixture_mean(predictive: Dataset) -> Float[Array, "N ..."]:
    """Mean (N [, outputs]) of the mixture over draws."""
    return np.asarray(draws_first(predictive, "mean").mean(0, dtype=np.float64))


def observed_classes(predictive: Dataset) -> Int[NDArray[np.int64], "N ..."]:
    """The observed class (N [, outputs]) of each row.

    Raises
    ------
    ArgumentError
        Some are no classes.
    """
    values = np.asarray(predictive["observed"].values)
    classes = values.astype(np.int64)
    number = predictive.sizes["class"]
    if (classes != values).any() or classes.min(initial=0) < 0 or classes.max(initial=0) >= number:
        raise ArgumentError(
            f"Expected observed classes 0 to {number - 1}, found values from {values.min()} to "
            f"{values.max()}."
        )
    return classes


def to_original_units(
    predictive: Dataset, location: float | Float[Array, " ..."], scale: float | Float[Array, " ..."]
) -> Dataset:
    """The predictive distribution of scale * y + location, where y is what was modelled.

    Targets that were standardised before the fit come back in their own units, in which
    likelihoods and errors are compared: the log density loses log(scale) for each element.

    Parameters
    ----------
    predictive : Dataset
        Of a continuous site, from ``predictive_distribution``.
    location, scale : float or array (outputs,)
        What was subtracted from the targets and what they were divided by.

    Raises
    ------
    ArgumentError
        The dataset holds classes, the scale is not positive, the location not finite, or one of
        them an array that is not one number for each output.

    Examples
    --------
    >>> import xarray as xr
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "mean": (("draw", "row"), [[0.0, 1.0, 2.0], [0.0, 1.0, 4.0]]),
    ...     "variance": (("draw", "row"), [[0.25, 0.25, 0.25], [0.25, 0.25, 0.25]]),
    ...     "log_likelihood": (("draw", "row"), [[-0.2, -0.4, -2.2], [-0.2, -0.4, -2.2]]),
    ...     "observed": ("row", [0.0, 1.3, 3.0]),
    ... }, {"row": [0, 1, 2]})
    >>> raw = to_original_units(predictive, location=10.0, scale=2.0)  # of y = (raw - 10) / 2
    >>> print(raw["mean"].mean("draw").values, raw["variance"].values[0, 0])
    [10. 12. 16.] 1.0
    """
    if is_classification(predictive):
        raise ArgumentError("Expected the predictions of a continuous site, found classes.")
    if not ((np.asarray(scale) > 0) & np.isfinite(scale)).all():
        raise ArgumentError(f"Expected a positive scale, found {scale}.")
    if not np.isfinite(location).all():
        raise ArgumentError(f"Expected a finite location, found {location}.")
    import xarray

    outputs = predictive.sizes.get("output", 1)

    def by_output(name: str, value: float | Float[Array, " ..."]) -> DataArray:
        if np.shape(value) not in ((), (1,), (outputs,)):
            raise ArgumentError(
                f"Expected {name} to be a number, or one for each of {outputs} outputs, found an "
                f"array of shape {np.shape(value)}."
            )
        numbers = np.broadcast_to(value, (outputs,))
        if "output" in predictive.sizes:
            return xarray.DataArray(numbers, dims=["output"])
        return xarray.DataArray(numbers[0])

    shift, factor = by_output("location", location), by_output("scale", scale)
    result = predictive.copy()
    result["mean"] = predictive["mean"] * factor + shift
    result["variance"] = predictive["variance"] * factor**2
    if "observed" in predictive:
        result["observed"] = predictive["observed"] * factor + shift
        # The log-determinant of y to scale * y + location, over the elements that the log density
        # adds up.
        lost = float(np.log(factor).sum())
        if "log_likelihood" in predictive:
            result["log_likelihood"] = predictive["log_likelihood"] - lost
    return result
