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

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jaxtyping import Float
from numpyro.distributions.util import is_identically_one
from numpyro.primitives import Messenger

from numpyro_ext.density.handlers import (
    BEFORE,
    LOG_DETERMINANT,
    Site,
    Trace,
    alone,
    is_enumerated,
    is_latent,
    is_observation,
)
from ppl_ext.errors import ModelCheckError
from ppl_ext.target import discrete as shared

#: Log probability of values that are not allowed.
_IMPOSSIBLE = -1e9
#: Nats by which one of several equally probable values is preferred: more than single precision
#: rounds a sum of thousands of terms by.
_PREFERRED = 1e-3
#: How funsor's names for time itself, and for other dimensions begin.
_TIME, _UNPLATED = "_time", "_pyro_dim_"


@alone
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

    with plate_to_enum_plate():
        every = enum(_InParallel(model), first_available_dim=-nesting - 1)
        found: Trace = trace(_OwnValues(every)).get_trace(*args, **kwargs)
    return found


class NoneNew(Messenger):
    """Refuses discrete latent sites, whose values would be drawn."""

    def process_message(self, msg: Site) -> None:
        """Refuse a site."""
        if msg["type"] == "sample" and msg["value"] is None and is_enumerated(msg):
            raise shared.new_site_error(msg["name"])


class _InParallel(Messenger):
    """Asks for all values of every discrete latent site at once.

    Other annotations ask the host for other estimates of the same sum.
    """

    def process_message(self, msg: Site) -> None:
        """Mark a discrete site; make one event of another that stands in no plate.

        The host takes its dimensions for those of plates to come, which fail then. A site that
        depends on discrete ones has more dimensions than its value.
        """
        if msg["type"] == "sample" and is_enumerated(msg):
            infer = {**msg["infer"], "enumerate": "parallel", "expand": False}
            infer.pop("num_samples", None)
            msg["infer"] = infer
        elif msg["type"] == "sample" and msg["value"] is not None and not msg["cond_indep_stack"]:
            is_own = is_latent(msg) or LOG_DETERMINANT in msg["infer"]
            if is_own and msg["fn"].batch_shape and msg["fn"].shape() == jnp.shape(msg["value"]):
                msg["fn"] = msg["fn"].to_event()


class _OwnValues(Messenger):
    """Gives enumerated sites the values of their supports; NumPyro counts from zero."""

    def process_message(self, msg: Site) -> None:
        """Replace numbers of values by values."""
        if msg["type"] == "sample" and is_enumerated(msg) and msg["value"] is not None:
            msg["value"] = values_of(msg["fn"])[msg["value"]]


def one_value_each(values: Mapping[str, Array]) -> Callable[[Site], Array | None]:
    """A ``substitute_fn`` that gives discrete latent sites one value each.

    Parameters
    ----------
    values : mapping of str to array
        With sizes of one where a site's shape has no dimension, and with all steps of a ``scan``.
    """

    def substitute(site: Site) -> Array | None:
        if site["type"] != "sample" or site["name"] not in values:
            return None
        value, shape = values[site["name"]], site["fn"].shape()
        if (step := site["infer"].get("_scan_current_index")) is not None:
            value = value[step]
        shared.check_places(values, site["name"], value.shape, shape)
        value = value.reshape(value.shape[value.ndim - len(shape) :])
        return jnp.broadcast_to(value, shape)

    return substitute


def values_of(fn: Any) -> Array:
    """The values of a distribution of finitely many, shape (n,) and its event's."""
    support = fn.enumerate_support(expand=False)
    return support.reshape(support.shape[:1] + tuple(fn.event_shape))


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
        if own & names or any(each.startswith(BEFORE) for each in own):
            found[name] = site
        elif any(each.startswith(_TIME) for each in own):
            if not is_latent(site) and LOG_DETERMINANT not in site["infer"]:
                found[name] = site
    return found


@alone
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
        if LOG_DETERMINANT in site["infer"]:
            raise shared.support_error(site["infer"][LOG_DETERMINANT])
        plates = frozenset(_scales(site).items())
        # A scale multiplies the logarithm of a sum, and so all factors in it must have the same.
        groups[plates].append(site)
        for name in site["infer"]["dim_to_name"].values():
            name = _written(name)
            if name not in summed or owners.setdefault(name, plates) == plates:
                continue
            batched = sorted(each for each, _ in plates ^ owners[name])
            raise shared.shared_rows_error([name], batched)
    total = jnp.zeros(())
    for plates, sites in groups.items():
        scale = math.prod(each for _, each in plates)
        total = total + scale * _contracted(sites).data
    return total


@alone
def log_likelihood_of_rows(trace: Trace) -> dict[str, shared.RowTerms]:
    """Log likelihood of what is observed with discrete sites, these summed out.

    Observed sites that share discrete sites have one. Scales are left out.

    Returns
    -------
    dict of str to RowTerms
        By names of observed sites, joined.
    """
    found = {}
    for sites in _components(summed_sites(trace)):
        others = [site for site in sites if not is_observation(site)]
        names = dict.fromkeys(_written(site["name"]) for site in sites if is_observation(site))
        if not names:
            continue
        kept = _shared_plates(sites)
        rows = tuple(sorted(kept, key=lambda plate: kept[plate]))
        # Locals that are not discrete have densities of their own in the sums.
        total = _contracted(sites, kept=rows, scaled=False)
        # log p(y | rest) = log sum p(y, z | rest) - log sum p(z | rest), row by row.
        total = total - _contracted(others, kept=rows, scaled=False)
        axes = {plate: axis for axis, plate in enumerate(rows)}
        sizes = {f.name: f.size for site in sites for f in site["cond_indep_stack"]}
        shape = tuple(sizes[plate] for plate in rows)
        inside = tuple(plate for plate in rows if plate in total.inputs)
        array = total.align(inside).data if inside else total.data
        array = array.reshape(
            tuple(n if p in inside else 1 for p, n in zip(rows, shape, strict=True))
        )
        terms = shared.RowTerms(jnp.broadcast_to(array, shape), axes, tuple(names))
        found[shared.joined_name(terms.sites)] = terms
    return found


@alone
def posterior_values(
    trace: Trace, shapes: Mapping[str, tuple[int, ...]], rng_key: Array | None
) -> dict[str, Array]:
    """Values of the discrete sites under their posterior, given everything else.

    Parameters
    ----------
    trace : dict
        Of :func:`enumerated_trace`.
    shapes : mapping of str to tuple of int
        Shape of each discrete site's value.
    rng_key : array, optional
        Key of a joint draw. Default: the values that are most probable together.
    """
    summed = summed_sites(trace)
    names = [name for name, site in summed.items() if is_enumerated(site)]
    evidence = {name: jnp.zeros(_log_prob(summed[name], False).shape) for name in names}
    numbers: dict[str, Array] = {}
    if rng_key is None:
        numbers = _most_probable(evidence, summed)
    else:
        # By the chain rule of probability: one site after another, and one step after another.
        timed = {name for name in names if _is_timed(summed[name])}
        # Sites outside of scans first: the steps inside depend on them.
        for name in sorted(names, key=lambda name: name in timed):
            rng_key, key = random.split(rng_key)
            steps = evidence[name].shape[0] if name in timed else 1

            def step(t: Any, state: Any, name: str = name, key: Array = key) -> Any:
                evidence, held = state
                # Weights may be zero where the rest of the density has no value.
                weight = _own_last(summed, name, jax.grad(_total)(evidence, summed, False)[name])
                number = random.categorical(
                    random.fold_in(key, t), jnp.log(jnp.maximum(weight, 1e-30)), -1
                )
                if name in timed:
                    here = jnp.arange(weight.shape[0]) == t
                    here = here.reshape((-1,) + (1,) * (number.ndim - 1))
                    number = jnp.where(here, number, held)
                else:
                    here = jnp.ones((1,) * number.ndim, bool)
                chosen = jax.nn.one_hot(number, weight.shape[-1], dtype=bool)
                against = jnp.where(chosen | ~here[..., None], 0.0, _IMPOSSIBLE)
                return {**evidence, name: _added(summed, name, evidence[name], against)}, number

            first = jnp.zeros(_own_last(summed, name, evidence[name]).shape[:-1], int)
            evidence, numbers[name] = lax.fori_loop(0, steps, step, (evidence, first))
    found = _whole({name: values_of(summed[name]["fn"])[numbers[name]] for name in names})
    # Sites of one value are left out.
    return {name: found[name].reshape(shape) for name, shape in shapes.items() if name in found}


def _most_probable(evidence: Mapping[str, Array], summed: Mapping[str, Site]) -> dict[str, Array]:
    """Numbers of the values of discrete sites that are the most probable together."""

    def look(_: Any, state: tuple[dict[str, Array], Any]) -> tuple[dict[str, Array], Any]:
        evidence, found = state[0], {}
        gradients = jax.grad(_total)(evidence, summed, True)
        for number, name in enumerate(evidence):
            weight = _own_last(summed, name, gradients[name])
            found[name] = jnp.argmax(weight, -1)
            # JAX shares the gradient of a largest term among all that are as large, and the values
            # with the largest shares need not belong to one of them. So the second look is at the
            # values of largest terms alone, each a little more or less probable.
            aside = _PREFERRED * random.uniform(random.key(number), weight.shape)
            against = jnp.where(weight > 0.0, aside, _IMPOSSIBLE)
            evidence = {**evidence, name: _added(summed, name, evidence[name], against)}
        return evidence, found

    nothing = {
        name: jnp.zeros(_own_last(summed, name, each).shape[:-1], int)
        for name, each in evidence.items()
    }
    return lax.fori_loop(0, 2, look, (dict(evidence), nothing))[1]


def _added(summed: Mapping[str, Site], name: str, evidence: Array, more: Array) -> Array:
    """Evidence on a site, with more that has the site's own values last."""
    own = summed[name]["infer"]["name_to_dim"][name]
    new = evidence + jnp.moveaxis(more, -1, evidence.ndim + own)
    return new.astype(evidence.dtype)


def _whole(values: Mapping[str, Array]) -> dict[str, Array]:
    """Values of sites from those of their parts, which are steps of a ``scan``."""
    parts: dict[str, list[str]] = defaultdict(list)
    # Steps before the first come with longer names.
    for name in sorted(values, key=len, reverse=True):
        parts[_written(name)].append(name)
    return {
        name: jnp.concatenate(
            [values[each].reshape(-1, *values[own[-1]].shape[1:]) for each in own]
        )
        if len(own) > 1
        else values[own[0]]
        for name, own in parts.items()
    }


def _written(name: str) -> str:
    """A site's name in the program."""
    return name.replace(BEFORE, "")


def at_one_value_each(
    trace: Trace, rng_key: Array
) -> tuple[dict[str, Array], dict[str, Array]] | None:
    """Some value of each discrete site, and the log density of every site there.

    Returns
    -------
    tuple or None
        Values by site, and log densities by site without scales; None with values that stand in
        for observations.
    """
    names = [name for name, site in trace.items() if is_enumerated(site)]
    stands_in = any(shared.STANDS_IN in site.get("infer", ()) for site in trace.values())
    if stands_in or not names:
        return None
    parts = {}
    for name in names:
        rng_key, key = random.split(rng_key)
        site, log_prob = trace[name], _log_prob(trace[name], False)
        dims = site["infer"].get("name_to_dim", {})
        shape = list(log_prob.shape)
        for each, dim in dims.items():
            if each in names and log_prob.ndim >= -dim:
                shape[dim] = 1
        own = dims.get(name)
        size = 1 if own is None else log_prob.shape[own]
        parts[name] = random.randint(key, shape, 0, size)
    whole = _whole(parts)
    in_steps = {_written(name): whole[_written(name)] for name in names if _is_timed(trace[name])}
    totals: dict[str, Array] = defaultdict(lambda: jnp.zeros(()))
    for name, site in trace.items():
        if site["type"] == "sample":
            totals[_written(name)] += _at_numbers(site, parts, in_steps).sum()
    values = {name: values_of(trace[name]["fn"])[parts[name]] for name in names}
    return _whole(values), dict(totals)


def _at_numbers(site: Site, parts: Mapping[str, Array], in_steps: Mapping[str, Array]) -> Array:
    """Log probabilities of a site at one value of each discrete site.

    Parameters
    ----------
    site : dict
    parts : mapping of str to array
        Numbers of the values of discrete sites, first steps of a ``scan`` apart.
    in_steps : mapping of str to array
        Of sites in a ``scan`` all steps.
    """
    log_prob = _log_prob(site, False)
    dims = site["infer"].get("name_to_dim", {}) if "infer" in site else {}
    steps = next((dim for name, dim in dims.items() if name.startswith(_TIME)), None)
    for name, dim in dims.items():
        if log_prob.ndim < -dim:
            continue
        if steps is not None and _written(name) in in_steps:
            # Of each step the value there, or of a step before.
            every_step, length = in_steps[_written(name)], log_prob.shape[steps]
            first = len(every_step) - length - name.count(BEFORE)
            # Steps stand to the left of all other dimensions, which are counted from the right.
            shape = (1,) * -steps + every_step.shape[1:]
            number = every_step[first : first + length].reshape(length, *shape[steps + 1 :])
        elif name in parts:
            number = parts[name]
        else:
            continue
        sites = dict.fromkeys(map(_written, parts))
        shared.check_places(sites, site["name"], number.shape, log_prob.shape, grows=True)
        values = jnp.arange(log_prob.shape[dim]).reshape((-1,) + (1,) * (-dim - 1))
        # Chosen by a sum, since numbers may have axes that the factor has not.
        log_prob = jnp.where(number == values, log_prob, 0.0).sum(dim, keepdims=True)
    return log_prob


def _total(evidence: Mapping[str, Array], summed: Mapping[str, Site], most: bool) -> Array:
    """Log of the sum, or of the largest term, with evidence on the discrete sites' values.

    The gradient by the evidence is the posterior of the sites, or one at the largest term.
    """
    parts = [
        _contracted(sites, evidence=evidence, largest=most).data for sites in _components(summed)
    ]
    return sum(parts, jnp.zeros(()))


def _own_last(summed: Mapping[str, Site], name: str, array: Array) -> Array:
    """An array of a discrete site's factor with its own values last, others summed up."""
    dims = summed[name]["infer"]["name_to_dim"]
    names = {each for each, site in summed.items() if is_enumerated(site)}
    others = tuple(
        dim
        for each, dim in dims.items()
        if each != name and (each in names or each.startswith(BEFORE))
    )
    return jnp.moveaxis(array.sum(others, keepdims=True), array.ndim + dims[name], -1)


def _is_timed(site: Site) -> bool:
    """Whether a site has a dimension of steps, which then is the first."""
    return any(name.startswith(_TIME) for name in site["infer"]["dim_to_name"].values())


def _components(summed: Mapping[str, Site]) -> list[list[Site]]:
    """Sites that have discrete sites, or steps of them, in common, in the order of the trace."""
    discrete, dims = {name for name, site in summed.items() if is_enumerated(site)}, []
    for name, site in summed.items():
        own = {
            _written(each)
            for each in site["infer"]["dim_to_name"].values()
            if each in discrete or each.startswith((BEFORE, _TIME))
        }
        own |= {_written(name)} if name.startswith(BEFORE) else set()
        dims.append(own)
    sites = list(summed.values())
    return [[sites[place] for place in places] for places in shared.groups_of(dims)]


def _shared_plates(sites: list[Site]) -> dict[str, int]:
    """Plates around every discrete site, and their dimensions."""
    stacks = [
        {f.name: f.dim for f in site["cond_indep_stack"] if f.dim is not None}
        for site in sites
        if is_enumerated(site)
    ]
    return {name: dim for name, dim in stacks[0].items() if all(name in each for each in stacks)}


def _scales(site: Site) -> dict[str, float]:
    """By how much the plates around a site multiply it, of those that hold a batch of rows."""
    return {name: scale for name, scale in site.get("plate_to_scale", {}).items() if name}


def _log_prob(site: Site, scaled: bool) -> Array:
    """Log probability with the scales of handlers, not with those of plates."""
    log_prob: Array = site["fn"].log_prob(site["value"])
    scale = site["scale"]
    if scaled and scale is not None and not is_identically_one(scale):
        # A site's scale has in it those of its plates, which whole sums are multiplied by.
        log_prob = (scale / math.prod(_scales(site).values())) * log_prob
    return log_prob


def _contracted(
    sites: list[Site],
    *,
    kept: tuple[str, ...] = (),
    scaled: bool = True,
    evidence: Mapping[str, Array] | None = None,
    largest: bool = False,
) -> Any:
    """Log of the sum over all discrete values of the product of these factors.

    Parameters
    ----------
    sites : list of dict
    kept : tuple of str
        Plates that are dimensions of the result; all others multiply.
    scaled : bool
        With the scales of handlers.
    evidence : mapping of str to array, optional
        Added to the log probability of discrete sites.
    largest : bool
        The largest term in place of the sum.
    """
    import funsor
    from numpyro.contrib.funsor.infer_util import _get_shift, _shift_name, compute_markov_factors

    add = funsor.ops.max if largest else funsor.ops.logaddexp
    factors: list[Any] = []
    of_time: dict[Any, list[Any]] = defaultdict(list)
    before: dict[Any, frozenset[str]] = defaultdict(frozenset)
    summed: frozenset[str] = frozenset()
    multiplied: frozenset[str] = frozenset()
    history = 0
    names = {site["name"]: site["infer"]["dim_to_name"] for site in sites}
    for site in sites:
        log_prob = _log_prob(site, scaled)
        if evidence is not None and site["name"] in evidence:
            log_prob = log_prob + evidence[site["name"]]
        dims = dict(site["infer"]["dim_to_name"])
        for dim in [dim for dim, name in dims.items() if name.startswith(_UNPLATED)]:
            # Entries without a plate are one joint observation.
            log_prob = log_prob.sum(dim, keepdims=True)
            del dims[dim]
        if not dims and all(size == 1 for size in log_prob.shape):
            log_prob = log_prob.squeeze()
        factor = funsor.to_funsor(log_prob, output=funsor.Real, dim_to_name=OrderedDict(dims))
        if times := [(dim, name) for dim, name in dims.items() if name.startswith(_TIME)]:
            dim, name = times[0]
            time = funsor.Variable(name, funsor.Bint[log_prob.shape[dim]])
            history = max(history, *(_get_shift(each) for each in dims.values()))
            before[time] |= frozenset(n for n in dims.values() if n.startswith(BEFORE))
            of_time[time].append(factor)
        else:
            factors.append(factor)
        if is_enumerated(site):
            summed |= {site["name"]}
        multiplied |= {frame.name for frame in site["cond_indep_stack"] if frame.dim is not None}
    chained = {}
    for time, earlier in before.items():
        # Steps that do not depend on each other are the rows of a plate.
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
            of_time, before, chained, summed, multiplied, history, add, funsor.ops.add
        )
    with funsor.interpretations.lazy:
        lazy = funsor.sum_product.sum_product(
            add,
            funsor.ops.add,
            factors,
            eliminate=summed | (multiplied - frozenset(kept)),
            plates=multiplied,
        )
    found = funsor.optimizer.apply_optimizer(lazy)
    left = sorted({name.split("__BOUND")[0] for name in found.inputs if name not in kept})
    if left:
        raise ModelCheckError(
            f"The discrete latent sites could not be summed out: dimensions of {left} are left. "
            "Give every dimension of a discrete site a plate, and steps that depend on each other "
            "numpyro.contrib.control_flow.scan."
        )
    return found
