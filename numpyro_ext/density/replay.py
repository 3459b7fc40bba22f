"""Replaying a model at posterior draws, on all rows of its data.

Diagnostics need what the model computes at each draw: deterministic sites, the pointwise log
likelihood, new observations. A model with subsampled plates gives these for a minibatch only,
so it is replayed over chunks of rows that cover every plate once, and the chunks are put
together in the order of the rows. Results go to host memory as NumPy arrays chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.typing import NDArray
from numpyro import handlers
from numpyro.primitives import Messenger

from numpyro_ext.density.handlers import (
    FixedKey,
    PlateControl,
    Site,
    is_factor,
    is_latent,
    is_observation,
    missing_observations,
    run_trace,
)
from numpyro_ext.density.layout import Data, Indices
from numpyro_ext.density.log_density import LogDensity
from numpyro_ext.density.prediction import TERMS, prediction_of
from ppl_ext.errors import ArgumentError

Array = NDArray[Any]

#: What :func:`replay` can compute.
GROUPS = ("deterministic", "predictive", "log_likelihood", "observed", "prediction")

#: What to do about a batch.
_PASS_ALL_ROWS = (
    "Pass the arrays of all rows instead of a batch, or switch off the groups that need them."
)

#: Rows of a subsampled plate, and draws, that are evaluated at once unless told otherwise.
DEFAULT_DATA_CHUNK = 2048
DEFAULT_DRAW_CHUNK = 128


@dataclass(frozen=True)
class SiteDescription:
    """One site of a model on all rows of its data.

    Parameters
    ----------
    name : str
    kind : {"latent", "observed", "deterministic"}
    shape : tuple of int
        Shape of the value, without draws.
    plates : tuple of str or None
        Plate that each axis of the value belongs to.
    batch_shape, batch_plates
        The same for the pointwise log density of the site.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    plates: tuple[str | None, ...]
    batch_shape: tuple[int, ...] = ()
    batch_plates: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Replay:
    """What a model computes at S posterior draws; every array is in host memory.

    Parameters
    ----------
    sites : dict of str to SiteDescription
        Latent, observed and deterministic sites, in trace order.
    plate_sizes : dict of str to int
        Full size of every plate.
    deterministic, predictive : dict of str to array (S, *site shape)
        Values of the deterministic sites, and new values of the observed sites.
    log_likelihood : dict of str to array (S, *batch shape)
        Log density of each observation; plate scales and ``handlers.scale`` are left out, and
        observations that are masked out have 0.
    observed : dict of str to array
        Values of the observed sites.
    prediction : dict of str to dict of str to array (S, *site shape)
        For each term of :mod:`numpyro_ext.density.prediction` what the distributions of the
        observed sites say, by site; class probabilities have one more axis.
    """

    sites: dict[str, SiteDescription]
    plate_sizes: dict[str, int]
    deterministic: dict[str, Array] = field(default_factory=dict)
    predictive: dict[str, Array] = field(default_factory=dict)
    log_likelihood: dict[str, Array] = field(default_factory=dict)
    observed: dict[str, Array] = field(default_factory=dict)
    prediction: dict[str, dict[str, Array]] = field(default_factory=dict)


@dataclass
class _Shapes:
    """What one abstract run of the model shows of a site."""

    kind: str
    shape: tuple[int, ...]
    plates: list[str | None]
    batch_shape: tuple[int, ...] = ()
    batch_plates: list[str | None] = field(default_factory=list)


class _FirstRows(Messenger):
    """Answers plates whose rows come with the arguments; which rows they are does not matter."""

    def process_message(self, msg: Site) -> None:
        """Number the rows of a plate that nobody else has answered."""
        if msg["type"] == "plate" and msg["value"] is None:
            msg["value"] = jnp.arange(msg["args"][1])


class _Resample(Messenger):
    """Gives observed sites new values, which later sites of the model see.

    Sites inside ``numpyro.contrib.control_flow.scan`` are not visible to it; ``drawn`` holds
    those that are.
    """

    def __init__(self, fn: Callable[..., Any], rng_key: jax.Array) -> None:
        self.rng_key = rng_key
        self.drawn: set[str] = set()
        super().__init__(fn)

    def process_message(self, msg: Site) -> None:
        """Draw a new observation."""
        if msg["type"] == "sample" and is_observation(msg):
            self.drawn.add(msg["name"])
            msg["value"] = _new_observation(msg, self.rng_key, len(self.drawn))


def _new_observation(site: Site, rng_key: jax.Array, number: int) -> jax.Array:
    """A draw from the distribution of an observed site, in the shape of the observations."""
    fn = site["fn"]
    shape = jnp.broadcast_shapes(jnp.shape(site["value"]), fn.shape())
    batch_shape = shape[: len(shape) - fn.event_dim]
    if fn.batch_shape != batch_shape:
        fn = fn.expand(batch_shape)
    value: jax.Array = fn.sample(random.fold_in(rng_key, number))
    return value


def _setting(values: Mapping[str, jax.Array], indices: Indices) -> Callable[[Site], Any]:
    """A ``substitute_fn`` that sets latent sites to constrained values at full length."""

    def substitute(site: Site) -> jax.Array | None:
        if not is_latent(site):
            return None
        if site["name"] not in values:
            raise missing_observations(site["name"])
        fn, value = site["fn"], values[site["name"]]
        step = site["infer"].get("_scan_current_index")
        if step is not None and jnp.ndim(value) > len(fn.shape()):
            value = value[step]
        for frame in site["cond_indep_stack"]:
            if frame.name in indices:
                axis = frame.dim - fn.event_dim
                value = jnp.take(value, indices[frame.name], axis=axis, mode="clip")
        if step is None:
            own = (*site["kwargs"].get("sample_shape", ()), *fn.shape())
            _check_draw_shape(site["name"], jnp.shape(value), own)
        return value

    return substitute


def _run(
    target: LogDensity,
    data: Data,
    values: Mapping[str, jax.Array],
    indices: Indices,
    resample: Any = None,
) -> dict[str, Site]:
    """Trace of the model with its latent sites at ``values`` and these rows of its plates."""
    held = handlers.substitute(FixedKey(target.model), data=target.held)
    sizes = {name: plate.size for name, plate in target.plates.items()}
    model = _FirstRows(PlateControl(held, indices, sizes))
    model = handlers.substitute(model, substitute_fn=_setting(values, indices))
    if resample is None:
        return run_trace(model, data.args, data.kwargs)
    outer = _Resample(model, resample)
    trace = run_trace(outer, data.args, data.kwargs)
    for number, (name, site) in enumerate(trace.items()):
        if is_observation(site) and name not in outer.drawn:
            site["value"] = _new_observation(site, random.fold_in(resample, 0), number)
    return trace


def _kind(site: Site) -> str | None:
    if site["type"] == "deterministic":
        return "deterministic" if hasattr(site["value"], "shape") else None
    if site["type"] != "sample" or is_factor(site):
        return None
    return "observed" if site["is_observed"] else "latent"


def _value_shape(site: Site) -> tuple[int, ...]:
    """Shape of the value; of an observed site together with its distribution."""
    shape = tuple(jnp.shape(site["value"]))
    if is_observation(site):
        return tuple(jnp.broadcast_shapes(shape, site["fn"].shape()))
    return shape


def _frame_plates(
    shape: tuple[int, ...], event_dim: int, frames: Iterable[Any]
) -> list[str | None] | None:
    """Plate of each axis, from the plates' dims; None when the shape does not fit them."""
    plates: list[str | None] = [None] * len(shape)
    for frame in frames:
        axis = len(shape) - event_dim + frame.dim
        if axis < 0 or shape[axis] != frame.size:
            if event_dim and axis < 0:
                return None
            continue
        plates[axis] = frame.name
    return plates


def _named_axes(site: Site) -> list[str | None]:
    """Plate of each axis of a site's value."""
    shape, frames = _value_shape(site), site["cond_indep_stack"]
    if site["type"] == "sample":
        return _frame_plates(shape, site["fn"].event_dim, frames) or [None] * len(shape)
    # numpyro.deterministic does not say which axes are part of the event, so look for the
    # fewest event axes that make all the plates fit.
    for event_dim in range(len(shape) + 1):
        named = _frame_plates(shape, event_dim, frames)
        if named is not None and len([name for name in named if name]) == len(frames):
            return named
    return [None] * len(shape)


def _shapes(
    target: LogDensity, data: Data, values: Mapping[str, jax.Array], indices: Indices
) -> tuple[dict[str, _Shapes], dict[str, tuple[int, int]]]:
    """Shapes of every site for these rows, and (size, rows) of every plate; nothing is computed."""
    found: dict[str, _Shapes] = {}
    plates: dict[str, tuple[int, int]] = {}

    def look(values: Mapping[str, jax.Array], data: Data) -> None:
        for name, site in _run(target, data, values, indices).items():
            if site["type"] == "plate":
                size, rows = site["args"]
                plates[name] = (size, size if rows is None else rows)
            kind = _kind(site)
            if kind is None:
                continue
            shapes = _Shapes(kind, _value_shape(site), _named_axes(site))
            if kind == "observed":
                shapes.batch_shape = tuple(jnp.shape(site["fn"].log_prob(site["value"])))
                frames = site["cond_indep_stack"]
                shapes.batch_plates = _frame_plates(shapes.batch_shape, 0, frames) or []
            found[name] = shapes

    jax.eval_shape(look, values, data)
    return found, plates


def _changed_axes(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    if len(before) != len(after):
        return []
    return [i for i, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]


def _describe(
    target: LogDensity, data: Data, values: Mapping[str, jax.Array]
) -> tuple[dict[str, SiteDescription], dict[str, int]]:
    """Shapes and plates of every site on all rows.

    The axes of a subsampled plate are those that follow the number of rows, which is certain
    also where a site does not say which of its axes belong to a plate.
    """
    owned = target.plates
    first = {name: jnp.arange(plate.subsample_size) for name, plate in owned.items()}
    sites, plates = _shapes(target, data, values, first)
    for plate in owned.values():
        more = {**first, plate.name: jnp.arange(plate.subsample_size + 1)}
        for name, probe in _shapes(target, data, values, more)[0].items():
            site = sites[name]
            for axis in _changed_axes(site.shape, probe.shape):
                site.plates[axis] = plate.name
            for axis in _changed_axes(site.batch_shape, probe.batch_shape):
                site.batch_plates[axis] = plate.name

    def full(shape: tuple[int, ...], names: list[str | None]) -> tuple[int, ...]:
        return tuple(
            owned[name].size if name in owned else length
            for length, name in zip(shape, names, strict=True)
        )

    described = {
        name: SiteDescription(
            name,
            site.kind,
            full(site.shape, site.plates),
            tuple(site.plates),
            full(site.batch_shape, site.batch_plates),
            tuple(site.batch_plates),
        )
        for name, site in sites.items()
    }
    sizes = {name: size if name in owned else rows for name, (size, rows) in plates.items()}
    return described, sizes


class _Store:
    """Full-length arrays in host memory, filled chunk by chunk.

    Parameters
    ----------
    num_draws : int or None
        Leading length of every array; None for arrays without draws.
    owned : collection of str
        Plates whose rows come in chunks.
    """

    def __init__(self, num_draws: int | None, owned: Iterable[str]) -> None:
        self.num_draws = num_draws
        self.owned = frozenset(owned)
        self.arrays: dict[str, Array] = {}

    def has_rows(self, plates: tuple[str | None, ...]) -> bool:
        """Whether a value with these plates comes in chunks."""
        return any(plate in self.owned for plate in plates)

    def put(
        self,
        name: str,
        values: Any,
        shape: tuple[int, ...],
        plates: tuple[str | None, ...],
        indices: Indices,
        draws: slice = slice(None),
    ) -> None:
        """Write the rows ``indices`` of values of full ``shape`` for some of the draws."""
        piece = np.asarray(values)
        if name not in self.arrays:
            lead = () if self.num_draws is None else (self.num_draws,)
            self.arrays[name] = np.empty(lead + shape, piece.dtype)
        whole = self.arrays[name]
        array = whole if self.num_draws is None else whole[draws]
        if not self.has_rows(plates):
            array[...] = piece
            return
        rows = [
            np.asarray(indices[plate]) if plate in self.owned else np.arange(length)
            for plate, length in zip(plates, shape, strict=True)
        ]
        if self.num_draws is not None:
            rows = [np.arange(len(array)), *rows]
        array[np.ix_(*rows)] = piece


def check_numbers_of_draws(draws: Mapping[str, Any]) -> None:
    """See that every site has as many draws as the others.

    Raises
    ------
    ArgumentError
        A site has none, or another number.
    """
    shapes = {name: np.shape(value) for name, value in draws.items()}
    numbers = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
    if len(set(numbers.values())) > 1 or not min(numbers.values(), default=1):
        raise ArgumentError(
            "Expected draws of every site, as many as of the others, along the first axis, found "
            f"{numbers}. Pass the dict that get_samples returns."
        )


def _check_draw_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ArgumentError(
            f"Expected every draw of site '{name}' in shape {expected}, found {found}. Chains "
            "must be one axis with the draws, as get_samples returns them, and sites inside a "
            "plate must have all its rows."
        )


def replay(
    target: LogDensity,
    draws: Mapping[str, Any],
    data: Data,
    *,
    groups: Collection[str] = GROUPS,
    all_rows: bool = True,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    rng_key: jax.Array | None = None,
) -> Replay:
    """Run the model at every draw, on all rows of its data.

    Parameters
    ----------
    target : LogDensity
    draws : mapping of str to array (S, *site shape)
        Constrained values of every latent site; local latents at full length.
    data : Data
        The model's arguments, from ``target.bind``, holding the full data.
    groups : collection of str
        What to compute, from ``GROUPS``; with none the sites are described only.
    all_rows : bool
        Refuse arguments that hold only some rows of a plate. Predictions on new rows take those
        that there are.
    draw_chunk : int, optional
        Draws evaluated at once. Default: 128.
    data_chunk : int, optional
        Rows of each subsampled plate evaluated at once. Default: that of the target, or 2048.
    rng_key : array, optional
        Key of the new observations. Default: ``jax.random.key(0)``.

    Returns
    -------
    Replay

    Raises
    ------
    ArgumentError
        A draw is missing for a latent site or does not have its shape, or the arguments hold only
        some rows of a plate.
    """
    missing = [name for name in target.layout.names if name not in draws]
    if missing:
        raise ArgumentError(
            f"Expected draws for every latent site, found none for {missing}. Pass the dict that "
            "get_samples returns."
        )
    check_numbers_of_draws(draws)
    values = {name: jnp.asarray(draws[name]) for name in target.layout.names}
    one = {name: value[0] for name, value in values.items()}
    if groups and all_rows:
        target.require_all_rows(data, _PASS_ALL_ROWS)
    described, sizes = _describe(target, data, one)
    for name, value in one.items():
        _check_draw_shape(name, jnp.shape(value), described[name].shape)
    result = Replay(described, sizes)
    if groups:
        rng_key = random.key(0) if rng_key is None else rng_key
        chunk = data_chunk or target.data_chunk or DEFAULT_DATA_CHUNK
        _fill(
            result, target, data, values, groups, draw_chunk or DEFAULT_DRAW_CHUNK, chunk, rng_key
        )
    return result


def _fill(
    result: Replay,
    target: LogDensity,
    data: Data,
    values: Mapping[str, jax.Array],
    groups: Collection[str],
    draw_chunk: int,
    data_chunk: int,
    rng_key: jax.Array,
) -> None:
    observed_sites = [site for site in result.sites.values() if site.kind == "observed"]
    deterministic_sites = [site for site in result.sites.values() if site.kind == "deterministic"]
    if "deterministic" not in groups:
        deterministic_sites = []
    # New values of an observed site change what the model computes after it, so with several
    # of them the new observations need a run of their own.
    separate = len(observed_sites) > 1

    def single(
        values: Mapping[str, jax.Array], rng_key: jax.Array, data: Data, indices: Indices
    ) -> dict[str, dict[str, jax.Array]]:
        trace = _run(target, data, values, indices)
        computed: dict[str, dict[str, jax.Array]] = {
            "deterministic": {s.name: trace[s.name]["value"] for s in deterministic_sites}
        }
        if "log_likelihood" in groups:
            computed["log_likelihood"] = {
                site.name: trace[site.name]["fn"].log_prob(trace[site.name]["value"])
                for site in observed_sites
            }
        if "prediction" in groups:
            for site in observed_sites:
                for term, value in prediction_of(trace[site.name]).items():
                    computed.setdefault(term, {})[site.name] = value
        if "predictive" in groups and observed_sites:
            if separate:
                again = _run(target, data, values, indices, resample=rng_key)
                computed["predictive"] = {s.name: again[s.name]["value"] for s in observed_sites}
            else:
                (site,) = observed_sites
                computed["predictive"] = {site.name: _new_observation(trace[site.name], rng_key, 0)}
        return computed

    def observations(
        values: Mapping[str, jax.Array], data: Data, indices: Indices
    ) -> dict[str, jax.Array]:
        trace = _run(target, data, values, indices)
        return {site.name: trace[site.name]["value"] for site in observed_sites}

    run = jax.jit(jax.vmap(single, in_axes=(0, 0, None, None)))
    look = jax.jit(observations)
    num_draws = len(next(iter(values.values())))
    owned = tuple(target.plates)
    stores = {
        name: _Store(num_draws, owned)
        for name in ("deterministic", "log_likelihood", "predictive", *TERMS)
    }
    observed = _Store(None, owned)
    uncertain: set[str] = set()
    one = {name: value[0] for name, value in values.items()}
    per_draw = bool(deterministic_sites) or bool(
        observed_sites and {"predictive", "log_likelihood", "prediction"} & set(groups)
    )
    starts = range(0, num_draws, draw_chunk) if per_draw else ()
    for number, (_, indices) in enumerate(target.sweep(data_chunk)):
        if "observed" in groups and observed_sites:
            for name, value in look(one, data, indices).items():
                site = result.sites[name]
                observed.put(name, value, site.shape, site.plates, indices)
        chunk_key = random.fold_in(rng_key, number)
        for start in starts:
            part = slice(start, min(start + draw_chunk, num_draws))
            some = {name: value[part] for name, value in values.items()}
            keys = jax.vmap(random.fold_in, (None, 0))(chunk_key, jnp.arange(part.start, part.stop))
            computed = run(some, keys, data, indices)
            for group, store in stores.items():
                for name, value in computed.get(group, {}).items():
                    site = result.sites[name]
                    shape, plates = site.shape, site.plates
                    if group == "log_likelihood":
                        shape, plates = site.batch_shape, site.batch_plates
                    elif group == "probabilities":
                        shape, plates = (*shape, jnp.shape(value)[-1]), (*plates, None)
                    if number == 0 or store.has_rows(plates) or group != "deterministic":
                        store.put(name, value, shape, plates, indices, part)
                    elif not np.allclose(
                        store.arrays[name][part], np.asarray(value), rtol=1e-6, equal_nan=True
                    ):
                        uncertain.add(name)
    if uncertain:
        # A value outside the plates that depends on the rows is right only with all of them.
        everything = {name: jnp.arange(plate.size) for name, plate in target.plates.items()}

        def recomputed(
            values: Mapping[str, jax.Array], data: Data, indices: Indices
        ) -> dict[str, jax.Array]:
            trace = _run(target, data, values, indices)
            return {name: trace[name]["value"] for name in uncertain}

        again = jax.jit(recomputed)
        for draw in range(num_draws):
            at = {name: value[draw] for name, value in values.items()}
            for name, value in again(at, data, everything).items():
                stores["deterministic"].arrays[name][draw] = np.asarray(value)
    result.deterministic.update(stores["deterministic"].arrays)
    result.predictive.update(stores["predictive"].arrays)
    result.log_likelihood.update(stores["log_likelihood"].arrays)
    result.observed.update(observed.arrays)
    result.prediction.update({term: stores[term].arrays for term in TERMS})
