"""Discrete latent sites summed out, by NumPyro's own enumeration (``numpyro.contrib.funsor``).

A site with finitely many values gets a dimension of its own, which holds all of them, and factors
that have such a dimension are multiplied and summed by funsor. What is here besides is the scale
of minibatches: it multiplies the logarithm of the sum over a row's values, not the terms in it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float
from numpyro.distributions.util import is_identically_one

from numpyro.primitives import Messenger

from numpyro_ext.density.handlers import Site, Trace, handling, is_enumerated
from ppl_ext.discrete import shared_rows_error
from ppl_ext.errors import ModelCheckError

#: How funsor's names for values of earlier steps, for time itself, and for other dimensions begin.
_BEFORE, _TIME, _UNPLATED = "_PREV_", "_time", "_pyro_dim_"


def enumerated_trace(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], nesting: int
) -> Trace:
    """The trace of a model whose discrete latent sites have all their values at once.

    Parameters
    ----------
    model : callable
    args, kwargs
        Its arguments.
    nesting : int
        Plates that are open at once, at most; dimensions to their left are free.
    """
    from numpyro.contrib.funsor import enum
    from numpyro.contrib.funsor.enum_messenger import trace
    from numpyro.contrib.funsor.infer_util import plate_to_enum_plate

    with handling(), plate_to_enum_plate():
        every = enum(_InParallel(model), first_available_dim=-nesting - 1)
        found: Trace = trace(_OwnValues(every)).get_trace(*args, **kwargs)
    return found


class _InParallel(Messenger):
    """Asks for all values of every discrete latent site at once.

    Other annotations ask the host for other estimates of the same sum.
    """

    def process_message(self, msg: Site) -> None:
        """Mark a site."""
        if msg["type"] == "sample" and is_enumerated(msg):
            infer = {**msg["infer"], "enumerate": "parallel", "expand": False}
            infer.pop("num_samples", None)
            msg["infer"] = infer


class _OwnValues(Messenger):
    """Gives enumerated sites the values of their supports; NumPyro counts from zero."""

    def process_message(self, msg: Site) -> None:
        """Replace numbers of values by values."""
        if msg["type"] == "sample" and is_enumerated(msg) and msg["value"] is not None:
            msg["value"] = values_of(msg["fn"])[msg["value"]]


def values_of(fn: Any) -> Array:
    """The values of a distribution of finitely many, shape (n,) and its event's."""
    support = fn.enumerate_support(expand=False)
    found: Array = support.reshape(support.shape[:1] + tuple(fn.event_shape))
    return found


def check_funsor(site: str) -> None:
    """See that funsor is there, by which NumPyro sums discrete latent sites out.

    Raises
    ------
    ImportError
        It is not.
    """
    if find_spec("funsor") is None:
        raise ImportError(
            f"Discrete latent site '{site}' is summed out by funsor, which is not installed. "
            "Install it with `pip install funsor`."
        )


def summed_sites(trace: Trace) -> dict[str, Site]:
    """Trace entries with a dimension of a discrete latent site, or of steps of one."""
    names = {name for name, site in trace.items() if is_enumerated(site)}
    found = {}
    for name, site in trace.items():
        own = set(site["infer"].get("dim_to_name", {}).values()) if "infer" in site else set()
        if own & names or any(each.startswith((_BEFORE, _TIME)) for each in own):
            found[name] = site
    return found


def log_marginal(summed: Mapping[str, Site]) -> Float[Array, ""]:
    """Log of the sum, over all values of discrete sites, of the factors that have them.

    Parameters
    ----------
    summed : dict
        Of :func:`summed_sites`.

    Raises
    ------
    ModelCheckError
        A plate holds a batch of rows that share a discrete site.
    """
    groups: dict[frozenset[tuple[str, float]], list[Site]] = defaultdict(list)
    owners: dict[str, frozenset[tuple[str, float]]] = {}
    for site in summed.values():
        plates = frozenset(_scales(site).items())
        groups[plates].append(site)
        for name in site["infer"]["dim_to_name"].values():
            name = name.replace(_BEFORE, "")
            if name not in summed or owners.setdefault(name, plates) == plates:
                continue
            batched = sorted(each for each, _ in plates ^ owners[name])
            raise shared_rows_error([name], batched)
    total = jnp.zeros(())
    for plates, sites in groups.items():
        scale = math.prod(each for _, each in plates)
        total = total + scale * _contracted(sites, scale)
    return total


def _scales(site: Site) -> dict[str, float]:
    """By how much the plates around a site multiply it, of those that hold a batch of rows."""
    return {name: scale for name, scale in site.get("plate_to_scale", {}).items() if name}


def _contracted(sites: list[Site], plate_scale: float) -> Float[Array, ""]:
    """Log of the sum over all discrete values of the product of these factors."""
    import funsor
    from numpyro.contrib.funsor.infer_util import _get_shift, _shift_name, compute_markov_factors

    factors: list[Any] = []
    of_time: dict[Any, list[Any]] = defaultdict(list)
    before: dict[Any, frozenset[str]] = defaultdict(frozenset)
    summed: frozenset[str] = frozenset()
    multiplied: frozenset[str] = frozenset()
    history = 0
    names = {site["name"]: site["infer"]["dim_to_name"] for site in sites}
    for site in sites:
        log_prob = site["fn"].log_prob(site["value"])
        scale = site["scale"]
        if scale is not None and not is_identically_one(scale):
            log_prob = (scale / plate_scale) * log_prob
        dims = dict(site["infer"]["dim_to_name"])
        for dim in [dim for dim, name in dims.items() if name.startswith(_UNPLATED)]:
            # Entries without a plate are one joint observation.
            log_prob = log_prob.sum(dim, keepdims=True)
            del dims[dim]
        if not dims and all(size == 1 for size in log_prob.shape):
            log_prob = log_prob.squeeze()
        factor = funsor.to_funsor(log_prob, output=funsor.Real, dim_to_name=OrderedDict(dims))
        times = [(dim, name) for dim, name in dims.items() if name.startswith(_TIME)]
        if times:
            dim, name = times[0]
            time = funsor.Variable(name, funsor.Bint[log_prob.shape[dim]])
            history = max(history, *(_get_shift(each) for each in dims.values()))
            before[time] |= frozenset(n for n in dims.values() if n.startswith(_BEFORE))
            of_time[time].append(factor)
        else:
            factors.append(factor)
        if is_enumerated(site):
            summed |= {site["name"]}
        multiplied |= {frame.name for frame in site["cond_indep_stack"] if frame.dim is not None}
    chained = {}
    for time, earlier in before.items():
        if history == 0:
            factors += of_time.pop(time)
            multiplied |= {time.name}
        dims_of = [names[_shift_name(each, -_get_shift(each))] for each in earlier]
        chained[time] = frozenset(
            name
            for each, dims in zip(earlier, dims_of, strict=True)
            if each in dims.values()
            for name in dims.values()
        )
    if of_time:
        factors += compute_markov_factors(
            of_time,
            before,
            chained,
            summed,
            multiplied,
            history,
            funsor.ops.logaddexp,
            funsor.ops.add,
        )
    with funsor.interpretations.lazy:
        lazy = funsor.sum_product.sum_product(
            funsor.ops.logaddexp,
            funsor.ops.add,
            factors,
            eliminate=summed | multiplied,
            plates=multiplied,
        )
    found = funsor.optimizer.apply_optimizer(lazy)
    if found.inputs:
        left = sorted({name.split("__BOUND")[0] for name in found.inputs})
        raise ModelCheckError(
            f"The discrete latent sites could not be summed out: dimensions of {left} are left. "
            "Give every dimension of a discrete site a plate, and steps that depend on each other "
            "numpyro.contrib.control_flow.scan."
        )
    result: Array = found.data
    return result
