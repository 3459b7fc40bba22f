"""Replaying a Pyro model at posterior draws, on all rows of its data.

The model runs at many draws at once, by torch's ``vmap``, and draw by draw where that cannot follow
it: where it branches on values, say. Results go to host memory, see
:mod:`ppl_ext.diagnostics.replay`.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ppl_ext.diagnostics import replay as shared
from ppl_ext.errors import ArgumentError, EvaluationWarning
from ppl_ext.options import check_choice
from ppl_ext.target.bounds import out_of_bounds
from ppl_ext.target.discrete import RowTerms
from ppl_ext.target.families import innermost
from pyro_ext.density import enumeration
from pyro_ext.density.handlers import (
    global_generator,
    has_density,
    is_deterministic,
    is_factor,
    plate_frames,
    transform_to_support,
    without_host_checks,
    without_validation,
)
from pyro_ext.density.layout import Data
from pyro_ext.density.linearized import MOVES, linearized
from pyro_ext.density.log_density import LogDensity
from pyro_ext.density.outputs import HOST
from pyro_ext.density.prediction import prediction_of
from pyro_ext.density.sampling import FilledApart, sampled
from pyro_ext.density.spaces import check_values, constrain, unconstrain
from pyro_ext.graphs import as_arguments
from pyro_ext.sharding import Sharding

Indices = Mapping[str, Tensor]


class _ReplayHandler(Messenger):
    """Sets latent sites to constrained values at full length and records every site.

    Observed sites of the names ``resample`` get new values, which later sites of the model see.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        indices: Indices,
        resample: Collection[str] = (),
        enumerated: bool = False,
        chosen: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.chosen = chosen or {}
        self.enumerated = enumerated
        self.values = values
        self.indices = indices
        self.resample = resample
        self.sites: dict[str, dict[str, Any]] = {}
        # Of sites with dimensions of discrete ones: without scales, and with them.
        self.factors: list[enumeration.Factor] = []
        self.scaled: list[enumeration.Factor] = []

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        # Values outside of a support are noted draw by draw. An error would end all at the first of
        # them.
        msg["fn"] = without_validation(msg["fn"])
        if enumeration.is_enumerated(msg):
            # Of these rows already; without a value it is drawn from its prior.
            if (chosen := self.chosen.get(msg["name"])) is not None:
                msg["value"] = chosen.to(msg["fn"].enumerate_support(expand=False).dtype)
            return
        if not msg["is_observed"] and msg["value"] is None:
            value = self.values.get(msg["name"])
            if value is None:
                raise _missing_observations(msg["name"])
            for frame in plate_frames(msg):
                if frame.name in self.indices:
                    axis = value.dim() - msg["fn"].event_dim + frame.dim
                    # Draws have all rows of a plate, and this run has some of them.
                    value = value.index_select(axis, self.indices[frame.name])
            if not self.enumerated:
                # With all values of a discrete site a distribution has more dimensions.
                shared.check_draw_shape(msg["name"], tuple(value.shape), tuple(msg["fn"].shape()))
            msg["value"] = value
        elif msg["name"] in self.resample:
            msg["value"] = _new_observation(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg) and not is_factor(msg):
            self.sites[msg["name"]] = msg
        if self.enumerated and not site_is_subsample(msg) and not is_deterministic(msg):
            log_prob = msg["fn"].log_prob(msg["value"])
            factor, scaled = (
                enumeration.factor_of(msg, log_prob, False),
                enumeration.factor_of(msg, log_prob),
            )
            if factor is not None and scaled is not None:
                self.factors.append(factor)
                self.scaled.append(scaled)

    @property
    def ties_latents(self) -> bool:
        """Whether a latent site is summed out with discrete ones."""
        latent = {name for name, site in self.sites.items() if not site["is_observed"]}
        return any(each.own is None and each.site in latent for each in self.factors)


def _missing_observations(name: str) -> ArgumentError:
    return ArgumentError(
        f"Expected the observations of site '{name}', which the engine was fitted to, found none "
        "in these arguments. Pass them in the place that they had then; for predictions on new "
        "data use predictive_distribution, or Predictive(model, "
        "posterior_samples=engine.get_samples())."
    )


def _kind(site: Mapping[str, Any]) -> str:
    if is_deterministic(site):
        return "deterministic"
    if site["is_observed"]:
        return "observed"
    return "discrete" if enumeration.is_enumerated(site) else "latent"


def _adds_density(site: Mapping[str, Any]) -> bool:
    """Whether a site that records a value has a density beside those of other sites.

    Of most it is 0 everywhere.
    """
    if not is_deterministic(site) or not has_density(site):
        return False
    delta = innermost(site["fn"], Delta)
    return isinstance(delta, Delta) and bool((delta.log_density != 0.0).any())


def _new_observation(site: Mapping[str, Any]) -> Tensor:
    """A draw from the distribution of an observed site, in the shape of the observations."""
    fn = shared.distribution_of(site)
    try:
        return sampled(fn)
    except NotImplementedError as error:
        raise shared.cannot_be_drawn(site["name"], error) from error


def _log_prob(site: Mapping[str, Any]) -> Tensor:
    return scale_and_mask(site["fn"].log_prob(site["value"]), 1.0, site["mask"])


def _is_outside(site: Mapping[str, Any]) -> Tensor:
    """Whether the value of a latent site is NaN, infinite or outside of its support."""
    value, support = site["value"], site["fn"].support
    finite = torch.isfinite(value)
    inside = finite.all() & support.check(value).all()
    with suppress(RuntimeError):  # at many draws at once, of which there is no one truth
        if bool(inside):
            return ~inside
    transform = transform_to_support(site)
    return shared.is_outside(
        value, finite, support.check, lambda value: transform(transform.inv(value)), torch
    )


def _run(
    target: LogDensity,
    data: Data,
    values: Mapping[str, Tensor],
    indices: Indices,
    resample: Collection[str] = (),
    chosen: Mapping[str, Tensor] | None = None,
) -> dict[str, dict[str, Any]]:
    handler = _ReplayHandler(values, indices, resample, chosen=chosen)
    target.bound.run(handler, (data.args, data.kwargs, dict(indices)), enumerated=False)
    return handler.sites


def _run_enumerated(
    target: LogDensity, data: Data, values: Mapping[str, Tensor], indices: Indices
) -> _ReplayHandler:
    """The handler of a run with all values of discrete latent sites at once."""
    handler = _ReplayHandler(values, indices, enumerated=True)
    target.bound.run(handler, (data.args, data.kwargs, dict(indices)))
    return handler


def _look(
    target: LogDensity, data: Data, values: Mapping[str, Tensor], indices: Indices
) -> tuple[dict[str, dict[str, Any]], dict[str, shared.SiteShapes]]:
    """Sites of a run, and their shapes."""
    sites = _run(target, data, values, indices)
    found = _shapes(sites)
    if target.bound.enumerated:
        handler = _run_enumerated(target, data, values, indices)
        shared.sum_out(found, enumeration.log_likelihood_of_rows(handler.factors))
    return sites, found


def _shapes(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, shared.SiteShapes]:
    found = {}
    for name, site in sites.items():
        kind, frames = _kind(site), plate_frames(site)
        shape = shared.value_shape(site, is_observed=kind == "observed")
        event_dim = None if kind == "deterministic" else site["fn"].event_dim
        found[name] = shared.SiteShapes(
            kind, shape, shared.plates_of_axes(shape, event_dim, frames)
        )
        if kind in ("observed", "latent", "discrete") or _adds_density(site):
            found[name].add_density(tuple(_log_prob(site).shape), frames, site["infer"])
    return found


def _describe(
    target: LogDensity, data: Data, values: Mapping[str, Tensor], missing: Collection[str]
) -> tuple[dict[str, shared.SiteDescription], dict[str, int], list[str]]:
    """Shapes and plates of every site, the sizes of plates, on all rows, and sites that record.

    The last are those that have a density all the same.
    """
    owned = target.plates
    first = target.first_rows()
    sites, shapes = _look(target, data, values, first)
    for name in target.observed_sites:
        # Without observations a discrete site is summed out.
        if name in sites and not sites[name]["is_observed"]:
            raise _missing_observations(name)
    sizes = {
        frame.name: frame.full_size if frame.name in owned else frame.size
        for site in sites.values()
        for frame in plate_frames(site)
    }
    probes = {}
    for name, plate in owned.items():
        # One row more: the axes that grow by it are those of the plate.
        rows = torch.arange(plate.subsample_size + 1, device=target.device)
        probes[name] = _look(target, data, values, {**first, name: rows})[1]
    computed = _computed_of(target, data, values, sites)
    recording = [name for name, site in sites.items() if _adds_density(site)]
    return shared.describe_sites(shapes, probes, owned, computed, missing), sizes, recording


def _computed_of(
    target: LogDensity,
    data: Data,
    values: Mapping[str, Tensor],
    sites: Mapping[str, Mapping[str, Any]],
) -> dict[str, shared.ComputedEntries]:
    """What of observed sites is computed from latent ones, from a run at these values."""

    def observed(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, shared.Array]:
        return {n: _host(each["value"]) for n, each in sites.items() if _kind(each) == "observed"}

    if not observed(sites):
        return {}
    layout, flat = check_values(target.bound, shared.one_draw(values))
    arguments = as_arguments(data.args, data.kwargs, target.bound.rows_for_values())
    position = unconstrain(target.bound, flat[0], (layout, arguments))
    # Moved in unconstrained space, so that all values stay in their supports.
    other = torch.as_tensor(shared.nearby(_host(position))).to(position)
    found = constrain(target.bound, other, arguments)
    again = _run(target, data, found, target.first_rows())
    return shared.computed_entries(observed(sites), observed(again))


def computed_sites(target: LogDensity, data: Data, draws: Mapping[str, Any]) -> frozenset[str]:
    """Observed sites whose values are computed from latent ones: they are priors of these."""
    values = {
        name: torch.as_tensor(draws[name][0], dtype=target.dtype, device=target.device)
        for name in target.layout.names
    }
    with torch.no_grad(), without_host_checks(), global_generator(0):
        sites = _run(target, data, values, target.first_rows())
        return shared.names_of_computed(_computed_of(target, data, values, sites))


def _host(value: Tensor) -> shared.Array:
    return value.detach().cpu().numpy()


def replay(
    target: LogDensity,
    draws: Mapping[str, Any],
    data: Data,
    *,
    groups: Collection[str] = shared.GROUPS,
    discrete: str = "sample",
    missing: Collection[str] = (),
    finite: Collection[str] = (),
    all_rows: bool = True,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    num_chains: int = 1,
    around: Mapping[str, Any] | None = None,
    seed: int = 0,
    sharding: Sharding | None = None,
) -> shared.Replay:
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
    discrete : {"sample", "most probable"}
        Which values the discrete latent sites have in the groups "discrete" and "deterministic",
        given a draw of all others and the data: drawn jointly, or the most probable ones
        together. New observations have values of their prior, but of sites that observations
        share values of their posterior, or those that ``draws`` has. So have predictions, unless
        the group "discrete" is there, whose values they then have. "alongside" are the
        deterministic sites of the run that new observations, or else predictions, are of.
    missing : collection of str
        Observed sites whose values are none: discrete sites are to know nothing of them, and they
        are not computed from latent sites.
    finite : collection of str
        Those of them that may be discrete latent sites.
    all_rows : bool
        Refuse arguments that hold only some rows of a plate. Predictions on new rows take those
        that there are.
    draw_chunk : int, optional
        Draws evaluated at once, where torch can do so. Default: as many as together have about
        a million numbers of the largest site, and 128 at most.
    data_chunk : int, optional
        Rows evaluated at once in models with subsampled plates. Default: that of the target.
    num_chains : int
        Chains that the draws are of, in words about memory.
    around : mapping of str to array, optional
        Constrained values of the latent sites at which the observed distributions are made linear,
        see :mod:`ppl_ext.target.linearized`. Default: the model as it is.
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
    shared.check_draws(target.layout.names, draws)
    check_choice("discrete", discrete, shared.DISCRETE)
    values = {
        name: torch.as_tensor(draws[name], dtype=target.dtype, device=target.device)
        for name in target.layout.names
    }
    with torch.no_grad(), without_host_checks(), global_generator(seed):
        one = {name: value[0] for name, value in values.items()}
        described, sizes, with_density = _describe(target, data, one, missing)
        shared.check_draw_shapes(one, around or {}, described)
        num_draws = len(next(iter(values.values())))
        shared.check_room(described, groups, num_draws, target.dtype.itemsize, num_chains)
        labels = shared.shared_discrete(described, target.plates, groups, missing)
        given = {name: draws[name] for name in target.bound.enumerated if name in draws}
        if not given.keys() >= {*labels}:
            # Numbers of their own: predictions are to be independent of how these were drawn.
            options: dict[str, Any] = {
                "data_chunk": data_chunk,
                "draw_chunk": draw_chunk,
                "sharding": sharding,
            }
            options |= {"missing": missing, "finite": finite, "all_rows": all_rows}
            found = replay(target, draws, data, groups=("discrete",), seed=seed + 1, **options)
            given = {**{name: found.discrete[name] for name in labels}, **given}
        for name, value in given.items():
            shared.check_draw_shape(name, tuple(value.shape[1:]), described[name].shape)
            values[name] = torch.as_tensor(value, device=target.device)
        places = list(range(num_draws))
        of_all = values
        if sharding is not None:
            places = sharding.own_draws(num_draws)
            values = {name: value[places] for name, value in values.items()}
        of_sites = target.plates, missing, finite, with_density
        recorder = shared.Recorder(described, groups, len(places), *of_sites)
        if groups:
            if all_rows:
                target.require_all_rows(data, shared.PASS_ALL_ROWS)
            most = discrete == "most probable"
            seeds = [[seed % 2**64, place] for place in places]
            chunks = data_chunk, draw_chunk
            _record(recorder, target, data, values, *chunks, most, seeds, around, of_all)
    replayed = recorder.replayed(sizes)
    if sharding is None:
        return replayed
    for name in target.layout.names:
        # All processes take part in joining the flags, also those that have noted none.
        replayed.outside.setdefault(name, np.zeros(len(places), bool))
    joined = replayed.with_draws(lambda own: sharding.arrays_of_all(own, num_draws))
    return replace(
        joined, outside={name: flags for name, flags in joined.outside.items() if flags.any()}
    )


def _positions(target: LogDensity, data: Data, values: Mapping[str, Any]) -> Float[Tensor, "S D"]:
    """The unconstrained positions of draws."""
    layout, flat = check_values(target.bound, values)
    arguments = as_arguments(data.args, data.kwargs, target.bound.rows_for_values())

    def position(values: Tensor) -> Tensor:
        return unconstrain(target.bound, values, (layout, arguments))

    # Observations that are missing are drawn; what they are does not matter.
    return torch.func.vmap(position, randomness="different", chunk_size=MOVES)(flat)


def out_of_bounds_at(target: LogDensity, data: Data, z: Any) -> dict[str, dict[str, shared.Array]]:
    """At which of some positions (S, D) something is out of bounds, as truth values (S,).

    By site and what; see :func:`ppl_ext.target.bounds.out_of_bounds`. All rows are looked at.
    """
    indices, latent = target.all_rows(), set(target.layout.names)

    def at(one: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        found = {}
        sites = _run(target, data, one, indices)
        for name, site in sites.items():
            if _kind(site) != "deterministic":
                value = None if name in latent else site["value"]
                found[name] = out_of_bounds(HOST, site["fn"], value, [(site["mask"], 0)])
        # The host's messages refer to each other, and would keep all draws' arrays for a while.
        for site in sites.values():
            site.clear()
        return found

    with torch.no_grad(), without_host_checks(), global_generator(0):
        z = torch.as_tensor(z, dtype=target.dtype, device=target.device)
        values = target.constrain(z, data)
        try:
            many = torch.func.vmap(at, randomness="different")(values)
        except RuntimeError:
            each = [
                at({name: value[row] for name, value in values.items()}) for row in range(len(z))
            ]
            many = {
                name: {what: torch.stack([one[name][what] for one in each]) for what in flags}
                for name, flags in each[0].items()
            }
    return {
        name: {what: _host(flag) for what, flag in flags.items()} for name, flags in many.items()
    }


#: Seconds from which on it is said that a model is run draw by draw.
_SLOW = 5.0
#: Values by group and site, and the sites whose values are outside of their supports.
Found = tuple[dict[tuple[str, str], Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class _Rows:
    """What is computed of a model on a chunk of rows, at one draw."""

    recorder: shared.Recorder
    target: LogDensity
    data: Data
    indices: Indices
    most: bool

    def __call__(
        self,
        one: Mapping[str, Tensor],
        groups: Collection[str],
        linear: Mapping[str, Any] | None = None,
    ) -> Found:
        """Values of the groups, but for observations."""
        target, data, indices, recorder = self.target, self.data, self.indices, self.recorder
        found: dict[tuple[str, str], Tensor] = {}
        names = target.bound.enumerated
        labels = {name: one[name] for name in names if name in one}
        sites = _run(target, data, one, indices, chosen=labels)
        outside = {name: _is_outside(sites[name]) for name in target.layout.names}
        # Of sites with a likelihood of their own; of others in ``marginals``.
        marginals: dict[str, RowTerms] = {}
        given = sites
        deterministic = recorder.deterministic_sites if "deterministic" in groups else ()
        if names and {*groups} & {"log_likelihood", "log_prior", "discrete", "deterministic"}:
            every = _run_enumerated(target, data, one, indices)
        if names and "log_likelihood" in groups:
            marginals = enumeration.log_likelihood_of_rows(every.factors)
        if names and ("discrete" in groups or deterministic):
            shapes = {name: tuple(sites[name]["value"].shape) for name in names}
            fns = {name: sites[name]["fn"] for name in names}
            seen = [factor for factor in every.scaled if factor.site not in recorder.missing]
            chosen = enumeration.posterior_values(seen, fns, shapes, self.most)
            # A second run: what the model computes of the discrete sites has to be of the values
            # chosen.
            given = _run(target, data, one, indices, chosen=chosen)
        for site in recorder.discrete_sites if "discrete" in groups else ():
            found["discrete", site.name] = given[site.name]["value"]
        for site in deterministic:
            found["deterministic", site.name] = given[site.name]["value"]
        for name, terms in marginals.items():
            found["log_likelihood", name] = terms.values
        if "log_prior" in groups and not (names and every.ties_latents):
            for name in (*target.layout.names, *recorder.with_density):
                found["log_prior", name] = _log_prob(sites[name])
        together = {name for terms in marginals.values() for name in terms.sites}
        for name, fn in (linear or {}).items():
            sites[name] = {**sites[name], "fn": without_validation(fn), "mask": None}
        new = sites
        own = [site.name for site in recorder.observed_sites]
        for name in (*(site.name for site in recorder.computed_sites), *own):
            if "log_likelihood" in groups and name not in together:
                found["log_likelihood", name] = _log_prob(sites[name])
        for name in own if "prediction" in groups else ():
            at = given[name] if "discrete" in groups else sites[name]
            said = prediction_of(at)
            if name in recorder.missing:  # its value only stands in for one
                said.pop("cdf", None)
            found |= {(term, name): value for term, value in said.items()}
        if "predictive" in groups and own:
            apart, hidden = recorder.apart, recorder.without_kept(own)
            again = partial(_run, target, data, one, indices, chosen=labels)
            new = again(resample=hidden) if apart else sites
            for name in own:
                value = new[name]["value"] if apart else _new_observation(new[name])
                found["predictive", name] = value
        at = given if "discrete" in groups else new
        for site in recorder.alongside_sites if "alongside" in groups else ():
            found["alongside", site.name] = at[site.name]["value"]
        return found, outside


def _record(
    recorder: shared.Recorder,
    target: LogDensity,
    data: Data,
    values: Mapping[str, Tensor],
    data_chunk: int | None,
    draw_chunk: int | None,
    most: bool,
    seeds: list[list[int]],
    around: Mapping[str, Any] | None,
    of_all: Mapping[str, Tensor],
) -> None:
    num_draws = len(next(iter(values.values())))
    if around is not None:
        (centre,) = _positions(target, data, shared.one_draw(around))
        moves = _positions(target, data, values) - centre
    size = draw_chunk or recorder.draws_together()
    for chunk, (_, indices) in enumerate(target.sweep(data_chunk)):
        rows = {name: _host(places) for name, places in indices.items()}
        at_draw = _Rows(recorder, target, data, indices, most)
        if "observed" in recorder.groups:
            first = _run(target, data, {name: value[0] for name, value in values.items()}, indices)
            for site in recorder.observed_sites:
                recorder.put("observed", site.name, _host(first[site.name]["value"]), chunk, rows)

        def put(
            found: Found,
            draws: slice,
            lead: bool,
            chunk: int = chunk,
            rows: dict[str, shared.Array] = rows,
        ) -> None:
            computed, outside = found
            for (group, name), value in computed.items():
                array = _host(value)
                recorder.put(group, name, array if lead else array[None], chunk, rows, draws)
            for name, flags in outside.items():
                recorder.note_outside(name, np.atleast_1d(_host(flags)), draws)

        left, why = recorder.at_draws, ""
        if left and around is None and len(next(iter(of_all.values()))) > 1:
            left, why = _put_together(at_draw, of_all, left, size, seeds, chunk, put)
        if not left:
            if not recorder.at_draws:
                put(at_draw({n: value[0] for n, value in values.items()}, ()), slice(0, 1), False)
            continue
        if around is not None:
            linear = linearized(target, centre, moves, data, indices)
        began = time.perf_counter()
        for draw in range(num_draws):
            one = {name: value[draw] for name, value in values.items()}
            # A draw has its own random numbers, however draws are split over processes.
            _seed([*seeds[draw], chunk])
            found = at_draw(one, left, None if around is None else linear(draw))
            put(found, slice(draw, draw + 1), False)
            # Linear outputs are taken draw by draw; others are where that was all there was.
            if draw == 0 and around is None:
                _tell_of_time((time.perf_counter() - began) * num_draws, left, why)
    for draw in range(num_draws if recorder.uncertain else 0):
        one = {name: value[draw] for name, value in values.items()}
        _seed([*seeds[draw], chunk + 1])
        own = [name for group, name in recorder.to_correct if group == "predictive"]
        hidden = recorder.without_kept(own)
        labels = {name: one[name] for name in target.bound.enumerated if name in one}
        sites = _run(target, data, one, target.all_rows(), resample=hidden, chosen=labels)
        for group, name in recorder.to_correct:
            recorder.correct(group, name, draw, _host(sites[name]["value"]))


def _seed(numbers: list[int]) -> None:
    sequence = np.random.SeedSequence(numbers)
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))


def _tell_of_time(seconds: float, groups: Collection[str], why: str) -> None:
    if seconds > _SLOW:
        warnings.warn(
            f"The model is run draw by draw, about {seconds:.0f} s for "
            f"{', '.join(sorted(groups))}, since torch cannot run it at many draws at once{why}. "
            "num_samples= takes fewer draws.",
            EvaluationWarning,
            stacklevel=2,
        )


def _put_together(
    at_draw: _Rows,
    values: Mapping[str, Tensor],
    groups: set[str],
    size: int,
    seeds: list[list[int]],
    chunk: int,
    put: Callable[[Found, slice, bool], None],
) -> tuple[set[str], str]:
    """Compute groups at many draws at once; returns those for which that is not possible, and why.

    ``values`` are those of all draws, ``seeds`` those of the process's own, with their places.

    Where new values cannot be drawn so, the other groups still are, but for what is computed of
    these.
    """
    num_draws = len(next(iter(values.values())))
    places = np.array([place for _, place in seeds])
    new = {"predictive", "alongside"} if "predictive" in groups else set()
    # From all groups to fewer, until torch can compute what is left.
    tiers = [groups, groups - new]
    if at_draw.target.bound.enumerated:
        # What depends on values of discrete sites is of one run with them.
        with_values = {"discrete", "deterministic", "prediction"}
        with_values |= set() if new else {"alongside"}
        tiers = [groups, groups - with_values, groups - with_values - new]
    why = ""
    for wanted, apart in itertools.product(tiers, (False, True)):
        if not wanted:
            continue
        try:
            at_one = partial(_at_one, at_draw, wanted, apart)
            every = _quiet(torch.func.vmap(at_one, randomness="different"))
            if not _is_same(at_draw, every, values, wanted):
                continue
            for begin in range(0, num_draws, size):
                draws = slice(begin, min(begin + size, num_draws))
                # A process computes all chunks that hold some of its draws, so that these have the
                # same random numbers however draws are split.
                own = np.flatnonzero((places >= begin) & (places < draws.stop))
                if not len(own):
                    continue
                _seed([seeds[0][0], begin, chunk, draws.stop - begin])
                found = every({name: value[draws] for name, value in values.items()})
                rows = torch.as_tensor(places[own] - begin)
                computed = {key: value[rows] for key, value in found[0].items()}
                outside = {key: value[rows] for key, value in found[1].items()}
                put((computed, outside), slice(int(own[0]), int(own[-1]) + 1), True)
        except Exception as error:  # noqa: BLE001 - a fault of the model is told draw by draw
            first = str(error).strip().partition("\n")[0]
            why = why or f" ({type(error).__name__}: {first[:100]})"
            continue
        return groups - wanted, why
    return groups, why


def _at_one(
    at_draw: _Rows, groups: Collection[str], apart: bool, one: Mapping[str, Tensor]
) -> Found:
    """What the model computes of one draw; ``apart`` where it fills one tensor with values.

    ``vmap`` refuses to fill one tensor with values of many draws. An ordered logistic does so.
    """
    with FilledApart(next(iter(one.values()))) if apart else nullcontext():
        return at_draw(one, groups)


def _quiet(function: Callable[..., Found]) -> Callable[..., Found]:
    """The function without torch's words on how it makes many draws of binomials and gammas."""

    def run(values: Mapping[str, Tensor]) -> Found:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "An output with one or more elements was resized")
            warnings.filterwarnings("ignore", "There is a performance drop because")
            return function(values)

    return run


def _is_same(
    at_draw: _Rows, every: Callable[..., Found], values: Mapping[str, Tensor], groups: set[str]
) -> bool:
    """Whether a model computes at two draws together what it computes at each of them.

    Shapes are compared as well, and of what is drawn these alone.
    """
    places = [0, len(next(iter(values.values()))) - 1]
    together = every({name: value[places] for name, value in values.items()})
    drawn = {"predictive", "discrete"}
    if at_draw.target.bound.enumerated:
        drawn |= {"deterministic", "alongside", *shared.TERMS}
    if at_draw.recorder.missing or ("predictive" in groups and at_draw.recorder.apart):
        drawn |= {"alongside"}
    for number, place in enumerate(places):
        own = at_draw({name: value[place] for name, value in values.items()}, groups)
        pairs: Any = zip(own, together, strict=True)
        for one, many in pairs:
            if one.keys() != many.keys():
                return False
            for key, value in one.items():
                other = many[key][number]
                if value.shape != other.shape or value.dtype != other.dtype:
                    return False
                if key[0] in drawn or not value.is_floating_point():
                    continue
                scale = 1.0 + value[torch.isfinite(value)].abs().max() if value.numel() else 1.0
                # Products of matrices are summed in another order when there are many draws at
                # once.
                allowed = 1e3 * torch.finfo(value.dtype).eps * scale
                if not torch.allclose(value, other, rtol=1e-4, atol=float(allowed), equal_nan=True):
                    return False
    return True
