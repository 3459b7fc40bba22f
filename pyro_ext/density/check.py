"""The model check: run the model a few times, find its structure, refuse what cannot work.

Every refusal happens here, before any step is taken, and says what was expected, what was
found and what to do. Where Pyro has a message of its own for the case, ours begins with it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.target import discrete
from ppl_ext.target.families import family_of, is_improper
from ppl_ext.target.scores import check_not_empty, repeated_plates_error
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.enumeration import is_enumerated, some_values, terms_at
from pyro_ext.density.first_run import Derived, ModelRun, Structure, run_once
from pyro_ext.density.handlers import (
    DiscoveryHandler,
    OneValueHandler,
    SiteTermsHandler,
    global_generator,
    is_deterministic,
    is_factor,
    plate_frames,
    without_host_checks,
)
from pyro_ext.density.layout import Data, DataPlate, Layout

#: What torch says where Python asks a tensor of many values for one.
_ONE_VALUE = ("Boolean value of Tensor", "to Python scalar", "to Scalar", "to an index")


def check_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    allow_local_latents: bool = True,
    parameters: Any = None,
    dtype: torch.dtype | None = None,
) -> Structure:
    """Check ``model`` and find its structure.

    Parameters
    ----------
    model : callable
    args, kwargs
        Arguments of one run of the model.
    allow_local_latents : bool
        Whether latents inside a subsampled plate are accepted.
    parameters : optional
        State of the parameter store to run it with. Default: the store's present one.
    dtype : torch.dtype, optional
        Of the latent sites. Default: torch's default dtype.

    Returns
    -------
    Structure

    Raises
    ------
    ModelCheckError
        Discrete, spherical or delta latents; no latents; repeated names; structure that changes
        between runs; a network called inside a plate; batch norm in train mode; latents inside
        a subsampled plate where they cannot be handled; values outside a support.
    ArgumentError
        Rows passed as arguments do not fit the model's plates.
    """
    run = partial(run_once, model, args, kwargs, dtype=dtype)
    with Derived((args, kwargs)) as derived:
        # Near zero in unconstrained space, and validated: values farther out may be invalid without
        # a fault of the model.
        first = run({}, 0, 0.1, parameters)
    handler, control = first.handler, first.control
    enumerated = tuple(name for name, site in handler.sites.items() if is_enumerated(site))
    if not sum(math.prod(shape) for shape in handler.shapes.values()):
        if enumerated:
            raise discrete.only_discrete_error(_name(model), enumerated)
        raise ModelCheckError(
            f"{_name(model)} found no latent variables. Expected at least one sample site without "
            "obs= that has entries; check that sites are not observed or hidden by poutine.block."
        )
    if repeated := [name for name, number in control.met.items() if number > 1]:
        raise repeated_plates_error(repeated)
    for name, site in handler.sites.items():
        for frame in site["cond_indep_stack"]:
            if frame.name in control.plates and not frame.vectorized:
                raise ModelCheckError(
                    f"Site '{name}' is inside plate '{frame.name}', which is subsampled and used "
                    "as a Python loop, so that the sites differ from minibatch to minibatch. "
                    "Expected a vectorized plate: `with pyro.plate(name, size, "
                    "subsample_size=B) as rows:`."
                )
    families = {
        name: family_of(handler.sites[name]["fn"], partial(_stated, derived))
        for name in handler.shapes
    }
    batch_arguments = bool(control.plates) and _rows_are_arguments(run, first)
    local_sites = tuple(
        name
        for name, site in handler.sites.items()
        if name in handler.shapes and any(f.name in control.plates for f in plate_frames(site))
    )
    if local_sites and batch_arguments:
        raise ModelCheckError(
            f"Latent sites {list(local_sites)} are inside a subsampled plate whose rows are "
            "passed as arguments, so that nothing says which rows they belong to. Expected the "
            "model to index its data by the plate: `with pyro.plate(name, size, "
            "subsample_size=B) as rows: ... obs=y[rows]`."
        )
    if local_sites and not allow_local_latents:
        raise ModelCheckError(
            f"Latent sites {list(local_sites)} are inside a subsampled plate. This engine would "
            "take the minibatch for the full plate. Expected latents outside subsampled "
            "plates; drop subsample_size, or use SVGD, which keeps such sites at full length, "
            "or SVI with AutoNormal(model, create_plates=...) or an encoder of your own."
        )
    # Branches on a latent show as other sites or shapes at other values. Values out here may
    # well be invalid, which is no fault of the model.
    for seed in (1, 2, 3):
        again = run({}, seed, 2.0, first.parameters, False)
        if again.handler.shapes != handler.shapes:
            raise ModelCheckError(
                "The model's structure changes between runs: latent sites "
                f"{_shapes(handler.shapes)} in one run, {_shapes(again.handler.shapes)} in "
                "another. Expected the same latent sites and shapes in every run; write the "
                "choice with torch.where or as a mixture instead of a Python branch."
            )
        for name, family in families.items():
            other = again.handler.sites[name]["fn"]
            if family_of(other, partial(_stated, derived)) != family:
                # An end of the support depends on a latent site.
                families[name] = family_of(handler.sites[name]["fn"], _unknown)
    improper = tuple(
        name
        for name in handler.shapes
        if is_improper(handler.sites[name]["fn"], handler.sites[name]["mask"])
    )
    layout = Layout(tuple(handler.shapes), dict(handler.shapes), families, improper)
    observed = tuple(
        name
        for name, site in handler.sites.items()
        if site["is_observed"] and not is_deterministic(site) and not is_factor(site)
    )
    check_not_empty({name: handler.sites[name]["value"].numel() for name in observed})
    dims = {
        frame.name: frame.dim for site in handler.sites.values() for frame in plate_frames(site)
    }
    plates = {
        name: DataPlate(name, size, subsample_size, dims.get(name))
        for name, (size, subsample_size) in control.plates.items()
    }
    return Structure(
        layout=layout,
        plates={} if batch_arguments else plates,
        batch_plates=plates if batch_arguments else {},
        local_sites=local_sites,
        observed_sites=observed,
        has_likelihood=bool(observed)
        or any(is_factor(site) and plate_frames(site) for site in handler.sites.values()),
        sees_data=bool(observed) or any(map(is_factor, handler.sites.values())),
        parameters=first.parameters,
        parameter_names=tuple(dict.fromkeys(handler.parameter_names)),
        device=_device(handler),
        enumerated=enumerated,
        nesting=max(
            0,
            *(-dim for dim in dims.values()),
            *(len(site["fn"].batch_shape) for site in handler.sites.values()),
        ),
    )


def check_enumeration(bound: BoundModel, data: Data) -> None:
    """See that the model runs with all values of its discrete latent sites, and that these sum.

    Raises
    ------
    ModelCheckError
        They steer Python, meet operations that do not broadcast, or are shared by rows of which
        there is a batch.
    """
    if not bound.enumerated:
        return
    number = torch.arange(bound.layout.dim, dtype=bound.dtype, device=bound.device)
    rows = bound.first_rows()
    # Another number for each coordinate, the same in every run.
    handler = SiteTermsHandler(bound.layout.split(0.1 * torch.cos(number)), rows)
    try:
        with torch.no_grad(), global_generator(0), without_host_checks():
            bound.run(handler, (data.args, data.kwargs, rows))
    except ModelCheckError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as raised:
        # The model ran with one value each, so rows fit its plates.
        own = raised.__cause__ if isinstance(raised, ArgumentError) else None
        error = own if isinstance(own, Exception) else raised
        text = str(error).strip().split("\n")[0]
        if isinstance(error, NotImplementedError) and "nhomogeneous" in text:
            raise discrete.values_error(bound.enumerated, text) from error
        if any(words in text for words in _ONE_VALUE):
            raise discrete.steering_error(bound.enumerated, "torch.where", text) from error
        raise discrete.enumeration_error(
            bound.enumerated, "pyro.ops.indexing.Vindex(array)[..., z]", error
        ) from error
    if not handler.has_stand_in and len(bound.enumerated) <= discrete.MOST_COMPARED:
        _compare(bound, data, handler)


def _compare(bound: BoundModel, data: Data, every: SiteTermsHandler) -> None:
    """Compare the density at some values of discrete sites with that of a run with these."""
    rows, epsilon = bound.first_rows(), torch.finfo(bound.dtype).eps
    for seed in range(discrete.VALUES_COMPARED):
        numbers = some_values(every.summed, torch.Generator().manual_seed(seed))
        one = OneValueHandler(every.unconstrained, rows, numbers)
        with torch.no_grad(), global_generator(0), without_host_checks():
            bound.run(one, (data.args, data.kwargs, rows), enumerated=False)
            summed = terms_at(every.summed, numbers)
        together = {name: float(term) for name, term in every.terms.items()}
        for name, terms in summed.items():
            # What is not summed of such a site is its transform's.
            together[name] += float(terms.sum())
        each = {
            name: discrete.SiteTerms(float(term), abs(float(term)))
            for name, term in one.terms.items()
        }
        discrete.check_one_value_each(bound.enumerated, together, each, epsilon)


def _stated(derived: Derived, end: Any) -> Any:
    """An end of a support; a ``LookupError`` where it depends on the model's arguments."""
    if end in derived:
        raise LookupError
    return end


def _unknown(end: Any) -> Any:
    raise LookupError


def _rows_are_arguments(run: Callable[..., ModelRun], first: ModelRun) -> bool:
    """Whether the plates' rows come with the arguments instead of being indexed by the model.

    Each plate is given another number of rows: a model that indexes its data follows, one that
    got a batch as an argument keeps the batch's rows.
    """
    plates = first.control.plates
    if first.control.given:
        return True
    indices = {
        name: torch.arange(size if declared + 1 > size else declared + 1)
        for name, (size, declared) in plates.items()
    }
    try:
        probe = run(indices, 0, 0.1, first.parameters)
    except IndexError as error:
        raise _too_few_rows(plates) from error
    except (ValueError, RuntimeError):
        return True
    for name, site in probe.handler.sites.items():
        if not site["is_observed"] or is_factor(site) or is_deterministic(site):
            continue
        value, before = site["value"], first.handler.sites[name]["value"]
        for frame in plate_frames(site):
            if frame.name in plates and isinstance(value, Tensor) and value.shape == before.shape:
                return True
    # The last rows: data that are shorter than the plate fail there, and not at its first rows.
    last = {name: torch.arange(size - declared, size) for name, (size, declared) in plates.items()}
    try:
        run(last, 0, 0.1, first.parameters, False)
    except IndexError as error:
        raise _too_few_rows(plates) from error
    return False


def _too_few_rows(plates: Mapping[str, tuple[int, int]]) -> ArgumentError:
    sizes = ", ".join(f"'{name}' of {size} rows" for name, (size, _) in plates.items())
    return ArgumentError(
        f"The model indexes its data by the rows of plate {sizes}, and the data have fewer rows. "
        "Expected as many rows as the plate has; write pyro.plate(name, len(x), subsample_size=B) "
        "and pass all rows."
    )


def _device(handler: DiscoveryHandler) -> torch.device:
    for site in handler.sites.values():
        if isinstance(site["value"], Tensor):
            return site["value"].device
    return torch.device("cpu")


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return "{" + ", ".join(f"{name}: {shape}" for name, shape in shapes.items()) + "}"


def _name(model: Callable[..., Any]) -> str:
    if inspect.isfunction(model):
        return f"Model '{model.__name__}'"
    return f"Model of type {type(model).__name__}"
