"""Replaying a model at posterior draws, on all rows of its data.

Diagnostics need what the model computes at each draw: deterministic sites, the pointwise log
likelihood, new observations. A model with subsampled plates gives these for a minibatch only,
so it is replayed over chunks of rows that cover every plate once, and the chunks are put
together in the order of the rows. Results go to host memory as NumPy arrays draw by draw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.density.handlers import (
    is_deterministic,
    is_factor,
    plate_frames,
    without_host_checks,
    without_validation,
)
from pyro_ext.density.layout import Data
from pyro_ext.density.log_density import LogDensity
from pyro_ext.density.prediction import TERMS, prediction_of

Array = NDArray[Any]
Indices = Mapping[str, Tensor]

#: What :func:`replay` can compute.
GROUPS = ("deterministic", "predictive", "log_likelihood", "observed", "prediction")

#: What to do about a batch.
_PASS_ALL_ROWS = (
    "Pass the arrays of all rows instead of a batch, or switch off the groups that need them."
)


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
        Log density of each observation; plate scales and ``poutine.scale`` are left out, and
        observations that are masked out have 0.
    observed : dict of str to array
        Values of the observed sites.
    prediction : dict of str to dict of str to array (S, *site shape)
        For each term of :mod:`pyro_ext.density.prediction` what the distributions of the observed
        sites say, by site; class probabilities have one more axis.
    """

    sites: dict[str, SiteDescription]
    plate_sizes: dict[str, int]
    deterministic: dict[str, Array] = field(default_factory=dict)
    predictive: dict[str, Array] = field(default_factory=dict)
    log_likelihood: dict[str, Array] = field(default_factory=dict)
    observed: dict[str, Array] = field(default_factory=dict)
    prediction: dict[str, dict[str, Array]] = field(default_factory=dict)


class _ReplayHandler(Messenger):
    """Sets latent sites to constrained values at full length and records every site.

    With ``resample`` observed sites get new values, which later sites of the model see.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        indices: Indices,
        resample: bool = False,
    ) -> None:
        super().__init__()
        self.values = values
        self.indices = indices
        self.resample = resample
        self.sites: dict[str, dict[str, Any]] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        msg["fn"] = without_validation(msg["fn"])
        if not msg["is_observed"] and msg["value"] is None:
            value = self.values.get(msg["name"])
            if value is None:
                raise ArgumentError(
                    f"Expected the observations of site '{msg['name']}', which the engine was "
                    "fitted to, found none. Pass them as in the fit; for predictions on new data "
                    "use Predictive(model, posterior_samples=engine.get_samples())."
                )
            for frame in plate_frames(msg):
                if frame.name in self.indices:
                    axis = value.dim() - msg["fn"].event_dim + frame.dim
                    value = value.index_select(axis, self.indices[frame.name])
            _check_draw_shape(msg["name"], tuple(value.shape), tuple(msg["fn"].shape()))
            msg["value"] = value
        elif self.resample and _kind(msg) == "observed" and not is_factor(msg):
            msg["value"] = _new_observation(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg) and not is_factor(msg):
            self.sites[msg["name"]] = msg


def _kind(site: Mapping[str, Any]) -> str:
    if is_deterministic(site):
        return "deterministic"
    return "observed" if site["is_observed"] else "latent"


def _value_shape(site: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of the value; of an observed site together with its distribution."""
    shape = tuple(site["value"].shape)
    if _kind(site) == "observed":
        return tuple(torch.broadcast_shapes(shape, site["fn"].shape()))
    return shape


def _new_observation(site: Mapping[str, Any]) -> Tensor:
    """A draw from the distribution of an observed site, in the shape of the observations."""
    fn = site["fn"]
    shape = torch.broadcast_shapes(site["value"].shape, fn.shape())
    batch_shape = shape[: len(shape) - fn.event_dim]
    if fn.batch_shape != batch_shape:
        fn = fn.expand(batch_shape)
    value: Tensor = fn.sample()
    return value


def _log_prob(site: Mapping[str, Any]) -> Tensor:
    return scale_and_mask(site["fn"].log_prob(site["value"]), 1.0, site["mask"])


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


def _named_axes(site: Mapping[str, Any]) -> list[str | None]:
    """Plate of each axis of a site's value."""
    shape, frames = _value_shape(site), plate_frames(site)
    if _kind(site) != "deterministic":
        return _frame_plates(shape, site["fn"].event_dim, frames) or [None] * len(shape)
    # pyro.deterministic may declare every axis as part of the event, so look for the fewest
    # event axes that make all the plates fit.
    for event_dim in range(len(shape) + 1):
        named = _frame_plates(shape, event_dim, frames)
        if named is not None and len([name for name in named if name]) == len(frames):
            return named
    return [None] * len(shape)


def _changed_axes(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    if len(before) != len(after):
        return []
    return [i for i, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]


def _run(
    target: LogDensity,
    data: Data,
    values: Mapping[str, Tensor],
    indices: Indices,
    resample: bool = False,
) -> dict[str, dict[str, Any]]:
    handler = _ReplayHandler(values, indices, resample)
    target.run(handler, (data.args, data.kwargs, dict(indices)))
    return handler.sites


def _describe(
    target: LogDensity, data: Data, values: Mapping[str, Tensor]
) -> tuple[dict[str, SiteDescription], dict[str, int]]:
    """Shapes and plates of every site on all rows.

    The axes of a subsampled plate are those that follow the number of rows, which is certain
    also where a site does not say which of its axes belong to a plate.
    """
    owned = target.plates
    first = target.first_rows()
    sites = _run(target, data, values, first)
    value_plates = {name: _named_axes(site) for name, site in sites.items()}
    batch_plates = {
        name: _frame_plates(tuple(_log_prob(site).shape), 0, plate_frames(site)) or []
        for name, site in sites.items()
        if _kind(site) == "observed"
    }
    for plate in owned.values():
        rows = torch.arange(plate.subsample_size + 1, device=target.device)
        probe = _run(target, data, values, {**first, plate.name: rows})
        for name, site in probe.items():
            before = _value_shape(sites[name])
            for axis in _changed_axes(before, _value_shape(site)):
                value_plates[name][axis] = plate.name
            if name in batch_plates:
                before = tuple(_log_prob(sites[name]).shape)
                for axis in _changed_axes(before, tuple(_log_prob(site).shape)):
                    batch_plates[name][axis] = plate.name

    def full(shape: tuple[int, ...], plates: list[str | None]) -> tuple[int, ...]:
        return tuple(
            owned[plate].size if plate in owned else length
            for length, plate in zip(shape, plates, strict=True)
        )

    described, sizes = {}, {}
    for name, site in sites.items():
        plates = value_plates[name]
        shape = _value_shape(site)
        if _kind(site) == "observed":
            batch = batch_plates[name]
            batch_shape = full(tuple(_log_prob(site).shape), batch)
        else:
            batch, batch_shape = [], ()
        described[name] = SiteDescription(
            name, _kind(site), full(shape, plates), tuple(plates), batch_shape, tuple(batch)
        )
        for frame in plate_frames(site):
            sizes[frame.name] = frame.full_size if frame.name in owned else frame.size
    return described, sizes


def _host(value: Tensor) -> Array:
    return value.detach().cpu().numpy()


class _Store:
    """Full-length arrays in host memory, filled draw by draw and chunk of rows by chunk.

    Parameters
    ----------
    lead : tuple of int
        Leading shape of every array: the number of draws, or nothing.
    owned : collection of str
        Plates whose rows come in chunks.
    """

    def __init__(self, lead: tuple[int, ...], owned: Iterable[str]) -> None:
        self.lead = lead
        self.owned = frozenset(owned)
        self.arrays: dict[str, Array] = {}

    def has_rows(self, plates: tuple[str | None, ...]) -> bool:
        """Whether a value with these plates comes in chunks."""
        return any(plate in self.owned for plate in plates)

    def put(
        self,
        name: str,
        value: Tensor,
        shape: tuple[int, ...],
        plates: tuple[str | None, ...],
        indices: Indices,
        position: tuple[int, ...] = (),
    ) -> None:
        """Write the rows ``indices`` of one value of full ``shape`` at ``position``."""
        piece = _host(value)
        if name not in self.arrays:
            self.arrays[name] = np.empty(self.lead + shape, piece.dtype)
        array = self.arrays[name][position]
        if self.has_rows(plates):
            rows = [
                _host(indices[plate]) if plate in self.owned else np.arange(length)
                for plate, length in zip(plates, shape, strict=True)
            ]
            array[np.ix_(*rows)] = piece
        else:
            self.arrays[name][position] = piece


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
    data_chunk: int | None = None,
    seed: int = 0,
) -> Replay:
    """Run the model at every draw, on all rows of its data.

    Parameters
    ----------
    target : LogDensity
    draws : mapping of str to array or tensor (S, *site shape)
        Constrained values of every latent site; local latents at full length.
    data : Data
        The model's arguments, from ``target.bind``, holding the full data.
    groups : collection of str
        What to compute, from ``GROUPS``; with none the sites are described only.
    all_rows : bool
        Refuse arguments that hold only some rows of a plate. Predictions on new rows take those
        that there are.
    data_chunk : int, optional
        Rows evaluated at once in models with subsampled plates. Default: that of the target.
    seed : int
        Seed of the new observations; the global generator is left as it was found.

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
    values = {
        name: torch.as_tensor(draws[name], dtype=target.dtype, device=target.device)
        for name in target.layout.names
    }
    devices = [target.device] if target.device.type == "cuda" else []
    with torch.no_grad(), without_host_checks(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        one = {name: value[0] for name, value in values.items()}
        described, sizes = _describe(target, data, one)
        for name, value in one.items():
            _check_draw_shape(name, tuple(value.shape), described[name].shape)
        result = Replay(described, sizes)
        if groups:
            if all_rows:
                target.require_all_rows(data, _PASS_ALL_ROWS)
            _fill(result, target, data, values, groups, data_chunk)
    return result


def _fill(
    result: Replay,
    target: LogDensity,
    data: Data,
    values: Mapping[str, Tensor],
    groups: Collection[str],
    data_chunk: int | None,
) -> None:
    num_draws = len(next(iter(values.values())))
    chunks = [indices for _, indices in target.sweep(data_chunk)]
    observed_sites = [site for site in result.sites.values() if site.kind == "observed"]
    deterministic_sites = [site for site in result.sites.values() if site.kind == "deterministic"]
    if "deterministic" not in groups:
        deterministic_sites = []
    # New values of an observed site change what the model computes after it, so with several
    # of them the new observations need a run of their own.
    separate = len(observed_sites) > 1
    lead = (num_draws,)
    deterministic, predictive = _Store(lead, chunks[0]), _Store(lead, chunks[0])
    likelihood, observed = _Store(lead, chunks[0]), _Store((), chunks[0])
    terms = {term: _Store(lead, chunks[0]) for term in TERMS}
    uncertain: set[str] = set()
    per_draw = bool(deterministic_sites) or bool(
        observed_sites and {"predictive", "log_likelihood", "prediction"} & set(groups)
    )
    for chunk, indices in enumerate(chunks):
        for draw in range(num_draws if per_draw else 1):
            one = {name: value[draw] for name, value in values.items()}
            at = (draw,)
            sites = _run(target, data, one, indices)
            for site in deterministic_sites:
                name, value = site.name, sites[site.name]["value"]
                if chunk == 0 or deterministic.has_rows(site.plates):
                    deterministic.put(name, value, site.shape, site.plates, indices, at)
                elif not np.allclose(
                    deterministic.arrays[name][at], _host(value), rtol=1e-6, equal_nan=True
                ):
                    uncertain.add(name)
            for site in observed_sites:
                name, message = site.name, sites[site.name]
                if "observed" in groups and draw == 0:
                    observed.put(name, message["value"], site.shape, site.plates, indices)
                if "log_likelihood" in groups:
                    likelihood.put(
                        name, _log_prob(message), site.batch_shape, site.batch_plates, indices, at
                    )
                if "prediction" in groups:
                    for term, value in prediction_of(message).items():
                        shape, plates = site.shape, site.plates
                        if term == "probabilities":
                            shape, plates = (*shape, value.shape[-1]), (*plates, None)
                        terms[term].put(name, value, shape, plates, indices, at)
            if "predictive" in groups and observed_sites:
                if separate:
                    sites = _run(target, data, one, indices, resample=True)
                for site in observed_sites:
                    message = sites[site.name]
                    value = message["value"] if separate else _new_observation(message)
                    predictive.put(site.name, value, site.shape, site.plates, indices, at)
    if uncertain:
        # A value outside the plates that depends on the rows is right only with all of them.
        for draw in range(num_draws):
            one = {name: value[draw] for name, value in values.items()}
            sites = _run(target, data, one, target.all_rows())
            for name in uncertain:
                deterministic.arrays[name][draw] = _host(sites[name]["value"])
    result.deterministic.update(deterministic.arrays)
    result.predictive.update(predictive.arrays)
    result.log_likelihood.update(likelihood.arrays)
    result.observed.update(observed.arrays)
    result.prediction.update({term: store.arrays for term, store in terms.items()})
