"""Replaying a NumPyro model at posterior draws, on all rows of its data.

Chunks of draws are evaluated by one compiled program for each number of rows; what it finds goes
to host memory, see :mod:`ppl_ext.diagnostics.replay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from numpyro import handlers
from numpyro.primitives import Messenger

from numpyro_ext.density.enumeration import log_likelihood_of_rows, posterior_values, summed_sites
from numpyro_ext.density.handlers import (
    BEFORE,
    Site,
    Trace,
    is_array,
    is_enumerated,
    is_factor,
    is_latent,
    is_observation,
    is_real,
    missing_observations,
    run_trace,
    transform_of,
)
from numpyro_ext.density.index_use import outputs_from
from numpyro_ext.density.layout import Data
from numpyro_ext.density.linearized import linearized
from numpyro_ext.density.log_density import LogDensity
from numpyro_ext.density.outputs import HOST
from numpyro_ext.density.prediction import prediction_of
from numpyro_ext.draws import key_or
from numpyro_ext.programs import Program
from ppl_ext.diagnostics import replay as shared
from ppl_ext.options import check_choice
from ppl_ext.target.bounds import out_of_bounds
from ppl_ext.target.discrete import RowTerms

# Folded into a key, so that new observations have not the numbers of draws with the same key. With
# JAX's default setting ``fold_in(key, 1)`` is ``split(key)[1]``: a small number would not do.
_STREAM = 2**31 - 3


#: Numbers of data and draws with fewer of which a program takes longer to compile than to run.
_QUICK = 2**24


def is_quick(num_draws: int, target: LogDensity, data: Data) -> bool:
    """Whether the model is evaluated at so many draws in less time than XLA takes to optimise."""
    numbers = sum(math.prod(jnp.shape(array)) for array in data.arrays)
    return num_draws * (target.dim + numbers) < _QUICK


class _FirstRows(Messenger):
    """Answers plates whose rows come with the arguments; which rows they are does not matter."""

    def process_message(self, msg: Site) -> None:
        """Number the rows of a plate that nobody else has answered."""
        if msg["type"] == "plate" and msg["value"] is None:
            msg["value"] = jnp.arange(msg["args"][1])


class _Resample(Messenger):
    """Gives observed sites of these names new values, which later sites of the model see.

    Sites inside ``numpyro.contrib.control_flow.scan`` have one for each of its steps. What is not
    visible to it, as what observes values of more dimensions than its distribution has there, is
    not in ``drawn``.
    """

    def __init__(self, fn: Callable[..., Any], rng_key: jax.Array, names: Collection[str]) -> None:
        self.rng_key, self.names = rng_key, names
        self.drawn: dict[str, int] = {}
        super().__init__(fn)

    def process_message(self, msg: Site) -> None:
        """Draw a new observation."""
        if msg["type"] == "control_flow":
            msg["kwargs"]["substitute_stack"].append(("condition", self._of_step))
        elif self._is_drawn(msg):
            msg["value"] = _new_observation(msg, self._key(msg["name"]))

    def _is_drawn(self, msg: Site) -> bool:
        # Of a scan its own message has the values of all steps, which are drawn by then.
        is_whole = msg.get("_control_flow_done", False)
        named = msg["type"] == "sample" and is_observation(msg) and msg["name"] in self.names
        return named and not is_whole

    def _key(self, name: str) -> jax.Array:
        return random.fold_in(self.rng_key, self.drawn.setdefault(name, len(self.drawn) + 1))

    def _of_step(self, msg: Site) -> jax.Array | None:
        """A new observation in one step of a ``scan``; None of a site that has none."""
        if not self._is_drawn(msg) or jnp.ndim(msg["value"]) > len(msg["fn"].shape()):
            return None
        step = msg["infer"].get("_scan_current_index", 0)
        # A key of each step's own: a scan traces its body once for all.
        return _new_observation(msg, random.fold_in(self._key(msg["name"]), step))


def _new_observation(site: Site, rng_key: jax.Array) -> jax.Array:
    """A draw from the distribution of an observed site, in the shape of the observations."""
    fn = shared.distribution_of(site)
    try:
        value: jax.Array = fn.sample(rng_key)
    except (NotImplementedError, ValueError) as error:
        raise shared.cannot_be_drawn(site["name"], error) from error
    return value


def _setting(
    values: Mapping[str, jax.Array], indices: dict[str, Any], enumerated: bool
) -> Callable[[Site], Any]:
    """A ``substitute_fn`` that sets latent sites to constrained values at full length."""

    def substitute(site: Site) -> jax.Array | None:
        if not is_latent(site) and not (is_enumerated(site) and site["name"] in values):
            return None
        if site["name"].startswith(BEFORE):
            return None  # it has its value from inside of the scan
        if site["name"] not in values:
            raise missing_observations(site["name"])
        fn, value = site["fn"], values[site["name"]]
        step = site["infer"].get("_scan_current_index")
        if step is not None and jnp.ndim(value) > len(fn.shape()):
            value = value[step]
        for frame in site["cond_indep_stack"]:
            # Values of discrete sites are of these rows already.
            if frame.name in indices and not is_enumerated(site):
                axis = frame.dim - fn.event_dim
                value = jnp.take(value, indices[frame.name], axis=axis, mode="clip")
        # With all values of a discrete site a distribution has more dimensions than its site.
        if step is None and not enumerated:
            own = (*site["kwargs"].get("sample_shape", ()), *fn.shape())
            shared.check_draw_shape(site["name"], jnp.shape(value), own)
        return value

    return substitute


def _is_outside(site: Site) -> jax.Array:
    """Whether the value of a latent site is NaN, infinite or outside of its support."""
    value, finite = site["value"], jnp.isfinite(site["value"])
    if site.get("_control_flow_done", False) or is_real(site["fn"].support):
        return ~finite.all()
    transform = transform_of(site)
    return shared.is_outside(
        value,
        finite,
        site["fn"].support,
        lambda value: transform(transform.inv(value)),
        jnp,
    )


def _run(
    target: LogDensity,
    data: Data,
    values: Mapping[str, jax.Array],
    indices: dict[str, Any],
    resample: Any = None,
    prior: Any = None,
    names: Collection[str] = (),
) -> dict[str, Site]:
    """Trace of the model with its latent sites at ``values`` and these rows of its plates.

    Discrete latent sites without values come from their prior, by the key ``prior``. Observed
    sites of these names have new values by the key ``resample``.
    """
    model = _model_at(target, values, indices, False)
    if target.bound.enumerated:
        model = handlers.seed(model, random.key(0) if prior is None else prior)
    if resample is None:
        return run_trace(model, data.args, data.kwargs)
    outer = _Resample(model, resample, names)
    trace = run_trace(outer, data.args, data.kwargs)
    for number, (name, site) in enumerate(trace.items()):
        if name in names and name not in outer.drawn:
            key = random.fold_in(random.fold_in(resample, 0), number)
            site["value"] = _new_observation(site, key)
    return trace


def _summed(trace: Trace) -> list[Site]:
    """Sites that are summed out with discrete ones, these left out."""
    return [site for site in summed_sites(trace).values() if not is_enumerated(site)]


def _run_enumerated(
    target: LogDensity, data: Data, values: Mapping[str, jax.Array], indices: dict[str, Any]
) -> Trace:
    """The same with all values of discrete latent sites at once."""
    return target.bound.run(_model_at(target, values, indices, True), data)


def _model_at(
    target: LogDensity,
    values: Mapping[str, jax.Array],
    indices: dict[str, Any],
    enumerated: bool,
) -> Callable[..., Any]:
    """The model with its latent sites at ``values`` and these rows of its plates."""
    # Always part of a program that is traced: as NumPy arrays they compile nothing by themselves.
    indices = {name: jnp.asarray(rows) for name, rows in indices.items()}
    model = _FirstRows(target.bound.controlled(indices))
    return handlers.substitute(model, substitute_fn=_setting(values, indices, enumerated))


def _kind(site: Site) -> str | None:
    if is_array(site):
        return "deterministic"
    if site["type"] != "sample" or is_factor(site):
        return None
    if site["is_observed"]:
        return "observed"
    return "discrete" if is_enumerated(site) else "latent"


def _shapes(
    target: LogDensity,
    data: Data,
    values: Mapping[str, Any],
    indices: dict[str, Any],
    missing: Collection[str] = (),
) -> tuple[dict[str, shared.SiteShapes], dict[str, int], bool]:
    """Shapes of every site for these rows, and the sizes of plates; nothing is computed.

    And whether the value of an observed site, none of the ``missing``, may be computed from latent
    ones.
    """
    found: dict[str, shared.SiteShapes] = {}
    plates: dict[str, int] = {}

    def look(values: Mapping[str, jax.Array], data: Data) -> list[jax.Array]:
        observed = []
        for name, site in _run(target, data, values, indices).items():
            if site["type"] == "plate":
                size, rows = site["args"]
                plates[name] = size if rows is None or name in target.plates else rows
            kind = _kind(site)
            if kind is None:
                continue
            if kind == "observed" and name not in missing:
                observed.append(site["value"])
            shape = shared.value_shape(site, is_observed=kind == "observed")
            frames = site["cond_indep_stack"]
            for frame in frames:
                # Plates inside scan are not in the trace.
                plates.setdefault(frame.name, frame.size)
            event_dim = site["fn"].event_dim if site["type"] == "sample" else None
            shapes = shared.SiteShapes(kind, shape, shared.plates_of_axes(shape, event_dim, frames))
            if kind in ("observed", "latent", "discrete"):
                log_prob = site["fn"].log_prob(site["value"])
                shapes.add_density(tuple(jnp.shape(log_prob)), frames, site["infer"])
            found[name] = shapes
        if target.bound.enumerated:
            trace = _run_enumerated(target, data, values, indices)
            shared.sum_out(found, log_likelihood_of_rows(trace))
        return observed

    # The same trace tells the shapes, and whether observed values depend on latent ones.
    program = jax.make_jaxpr(look)(values, data).jaxpr
    return found, plates, any(outputs_from(program, len(values)))


def _describe(
    target: LogDensity, data: Data, values: Mapping[str, Any], missing: Collection[str]
) -> tuple[dict[str, shared.SiteDescription], dict[str, int]]:
    """Shapes and plates of every site, and the sizes of plates, on all rows."""
    owned = target.plates
    first = {name: np.arange(plate.subsample_size) for name, plate in owned.items()}
    sites, sizes, reads = _shapes(target, data, values, first, missing)
    # One row more: the axes that grow by it are those of the plate.
    more = {
        name: {**first, name: np.arange(plate.subsample_size + 1)} for name, plate in owned.items()
    }
    probes = {name: _shapes(target, data, values, rows)[0] for name, rows in more.items()}
    computed = _computed_of(target, data, shared.one_draw(values)) if reads else {}
    return shared.describe_sites(sites, probes, owned, computed, missing), sizes


def computed_sites(target: LogDensity, data: Data, draws: Mapping[str, Any]) -> frozenset[str]:
    """Observed sites whose values are computed from latent sites, so that they act as priors."""
    return shared.names_of_computed(_computed_of(target, data, draws))


def _computed_of(
    target: LogDensity, data: Data, draws: Mapping[str, Any]
) -> dict[str, shared.ComputedEntries]:
    """What of observed sites is computed from latent ones, from runs at a draw and nearby."""
    first = {name: np.arange(plate.subsample_size) for name, plate in target.plates.items()}

    def observed(values: Mapping[str, jax.Array], data: Data) -> dict[str, jax.Array]:
        trace = _run(target, data, values, first)
        return {name: site["value"] for name, site in trace.items() if is_observation(site)}

    one: Any = {name: np.asarray(draws[name])[:1] for name in target.layout.names}
    values = {name: value[0] for name, value in one.items()}
    # Moved in unconstrained space, so that all values stay in their supports.
    other: Any = shared.nearby(np.asarray(target.unconstrain(one, data)))
    found = {name: value[0] for name, value in target.constrain(other, data).items()}
    program = Program(observed, rarely=True)
    runs = ({n: np.asarray(v) for n, v in program(each, data).items()} for each in (values, found))
    return shared.computed_entries(*runs)


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
    rng_key: jax.Array | None = None,
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
        Draws evaluated at once. Default: 128.
    data_chunk : int, optional
        Rows evaluated at once in models with subsampled plates. Default: that of the target.
    num_chains : int
        Chains that the draws are of, in words about memory.
    around : mapping of str to array, optional
        Constrained values of the latent sites at which the observed distributions are made linear,
        see :mod:`ppl_ext.target.linearized`. Default: the model as it is.
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
    shared.check_draws(target.layout.names, draws)
    check_choice("discrete", discrete, shared.DISCRETE)
    # The draws leave the device once, and go back in chunks of one size.
    values = {name: np.asarray(draws[name]) for name in target.layout.names}
    one = {name: value[0] for name, value in values.items()}
    if groups and all_rows:
        target.require_all_rows(data, shared.PASS_ALL_ROWS)
    described, sizes = _describe(target, data, one, missing)
    shared.check_draw_shapes(one, around or {}, described)
    num_draws = len(next(iter(values.values())))
    shared.check_room(described, groups, num_draws, jnp.dtype(target.dtype).itemsize, num_chains)
    recorder = shared.Recorder(described, groups, num_draws, target.plates, missing, finite)
    labels = shared.shared_discrete(described, target.plates, groups, missing)
    given = {name: np.asarray(draws[name]) for name in target.bound.enumerated if name in draws}
    if not given.keys() >= {*labels}:
        # Numbers of their own: predictions are to be independent of how these were drawn.
        options: dict[str, Any] = {
            "data_chunk": data_chunk,
            "draw_chunk": draw_chunk,
            "all_rows": all_rows,
        }
        options |= {"missing": missing, "finite": finite}
        own = random.fold_in(key_or(rng_key), 1)
        found = replay(target, draws, data, groups=("discrete",), rng_key=own, **options).discrete
        given = {**{name: found[name] for name in labels}, **given}
    for name, value in given.items():
        shared.check_draw_shape(name, value.shape[1:], described[name].shape)
        values[name] = value
    if groups:
        key = key_or(rng_key)
        rows = data_chunk or target.data_chunk or shared.DATA_CHUNK
        most = discrete == "most probable"
        size = draw_chunk or recorder.draws_together()

        def record(form: Data) -> None:
            _record(recorder, target, form, values, size, rows, key, most, around)

        # Draws may need what a density does not, such as the largest count of a Multinomial.
        data.tried(record, (shared.CannotBeDrawnError,))
    return recorder.replayed(sizes)


def _record(
    recorder: shared.Recorder,
    target: LogDensity,
    data: Data,
    values: Mapping[str, Any],
    draw_chunk: int,
    data_chunk: int,
    rng_key: jax.Array,
    most: bool,
    around: Mapping[str, Any] | None,
) -> None:
    num_draws = len(next(iter(values.values())))
    centre, moves = np.zeros(0), np.zeros((num_draws, 0))
    if around is not None:
        # A position (D,) of constrained values, and the ways (S, D) from there to draws.
        (place,) = target.unconstrain(shared.one_draw(around), data)
        centre, moves = np.asarray(place), np.asarray(target.unconstrain(values, data) - place)
    # Chunks of one size, for which one program is compiled: the last is filled up.
    size = -(-num_draws // -(-num_draws // draw_chunk)) if recorder.at_draws else 1
    observed = tuple(site.name for site in recorder.observed_sites)
    priors = tuple(site.name for site in recorder.computed_sites)
    deterministic = tuple(site.name for site in recorder.deterministic_sites)
    alongside = tuple(site.name for site in recorder.alongside_sites)
    quick = is_quick(num_draws, target, data)
    run = _compiled_chunk(
        target,
        recorder.groups,
        observed,
        priors,
        deterministic,
        alongside,
        recorder.apart,
        quick,
        most,
        recorder.missing,
        tuple(recorder.without_kept(observed)),
        around is not None,
        size < min(num_draws, shared.DRAW_CHUNK) and target.sharding is None,
    )
    for chunk, (_, rows) in enumerate(target.sweep(data_chunk)):
        places_of_rows = {name: np.asarray(places) for name, places in rows.items()}
        for start in range(0, num_draws if recorder.at_draws else 1, size):
            # The last draw fills the last chunk up; what is found of it there is left out.
            places = np.minimum(np.arange(start, start + size), num_draws - 1)
            some = {name: value[places] for name, value in values.items()}
            some_moves = moves[places]
            if target.sharding is not None:
                some, some_moves = target.sharding.split((some, some_moves))
            linear_at = centre, some_moves
            computed, observations = run(some, rng_key, chunk, places, data, rows, linear_at)
            draws = slice(start, min(start + size, num_draws))
            count = draws.stop - draws.start
            for name, each in computed.pop(_OUTSIDE).items():
                recorder.note_outside(name, np.asarray(each)[:count], draws)
            for group, found in computed.items():
                for name, each in found.items():
                    array = np.asarray(each)[:count]
                    recorder.put(group, name, array, chunk, places_of_rows, draws)
            if start == 0:
                for name, each in observations.items():
                    recorder.put("observed", name, np.asarray(each), chunk, places_of_rows)
    if recorder.uncertain:
        everything = {name: np.arange(plate.size) for name, plate in target.plates.items()}

        wanted = recorder.to_correct
        own = [name for group, name in wanted if group == "predictive"]
        own = recorder.without_kept(own)

        def recomputed(
            values: Mapping[str, jax.Array], data: Data, key: jax.Array
        ) -> dict[str, jax.Array]:
            new = key if own else None
            trace = _run(target, data, values, everything, new, random.fold_in(key, 1), own)
            return {name: trace[name]["value"] for _, name in wanted}

        program = Program(recomputed, rarely=quick)
        of_all = random.fold_in(rng_key, _STREAM - chunk - 1)
        for draw in range(num_draws):
            at = {name: value[draw] for name, value in values.items()}
            found = program(at, data, random.fold_in(of_all, draw))
            for group, name in wanted:
                recorder.correct(group, name, draw, np.asarray(found[name]))


def out_of_bounds_at(target: LogDensity, data: Data, z: Any) -> dict[str, dict[str, jax.Array]]:
    """At which of some positions (S, D) something is out of bounds, as truth values (S,).

    By site and what; see :func:`ppl_ext.target.bounds.out_of_bounds`. All rows are looked at, and
    no sites of a ``scan``.
    """
    rows = {name: np.arange(plate.size) for name, plate in target.plates.items()}
    found: dict[str, dict[str, jax.Array]]
    found = _compiled_bounds(target)(jnp.asarray(z, target.dtype), data, rows)
    return found


@lru_cache(maxsize=8)
def _compiled_bounds(target: LogDensity) -> Program:
    latent = set(target.layout.names)

    def at(
        one: Mapping[str, jax.Array], data: Data, rows: dict[str, Any]
    ) -> dict[str, dict[str, jax.Array]]:
        return {
            name: out_of_bounds(HOST, site["fn"], None if name in latent else site["value"])
            for name, site in _run(target, data, one, rows).items()
            if _kind(site) in ("latent", "discrete", "observed")
            and not site.get("_control_flow_done", False)
        }

    def chunk(z: jax.Array, data: Data, rows: dict[str, Any]) -> dict[str, dict[str, jax.Array]]:
        values = target.constrain(z, data)
        return jax.vmap(lambda one: at(one, data, rows))(values)

    return Program(chunk, rarely=True)


#: Where it is kept which latent sites are outside of their supports.
_OUTSIDE = "outside"

#: Values by group or term and site.
Computed = dict[str, dict[str, jax.Array]]


# A few programs are kept, so that a second look at the same fit is not compiled again.
@lru_cache(maxsize=8)
def _compiled_chunk(
    target: LogDensity,
    groups: frozenset[str],
    observed: tuple[str, ...],
    priors: tuple[str, ...],
    deterministic: tuple[str, ...],
    alongside: tuple[str, ...],
    apart: bool,
    quick: bool,
    most: bool,
    missing: frozenset[str],
    hidden: tuple[str, ...],
    linear: bool,
    in_turn: bool,
) -> Program:
    """What is wanted at some draws, and the observations, on one chunk of rows.

    Draws whose numbers are many are taken ``in_turn``: side by side they would leave the
    processor's cache.
    """
    # Predictions are then given the values of the discrete sites.
    at_values = "discrete" in groups

    def at_draw(
        values: Mapping[str, jax.Array],
        key: jax.Array,
        data: Data,
        indices: dict[str, Any],
        centre: jax.Array,
        move: jax.Array,
    ) -> Computed:
        trace = _run(target, data, values, indices, prior=random.fold_in(key, 1))
        if linear:
            for name, fn in linearized(target, centre, data, indices)(move).items():
                trace[name]["fn"] = fn
        # Of sites with a likelihood of their own; of others in ``marginals``.
        marginals: dict[str, RowTerms] = {}
        given = trace
        enumerated = target.bound.enumerated
        if enumerated and groups & {"log_likelihood", "log_prior", "discrete", "deterministic"}:
            latents = {name: values[name] for name in target.layout.names}
            every = _run_enumerated(target, data, latents, indices)
        if enumerated and "log_likelihood" in groups:
            marginals = log_likelihood_of_rows(every)
        if enumerated and ("discrete" in groups or deterministic):
            shapes = {name: tuple(trace[name]["value"].shape) for name in enumerated}
            seen = {name: site for name, site in every.items() if name not in missing}
            chosen = posterior_values(seen, shapes, None if most else random.fold_in(key, 2))
            # A second run: what the model computes of the discrete sites has to be of the values
            # chosen.
            given = _run(target, data, {**values, **chosen}, indices)
        computed: Computed = {
            "deterministic": {name: given[name]["value"] for name in deterministic},
            "discrete": {name: given[name]["value"] for name in enumerated if "discrete" in groups},
            "log_likelihood": {name: terms.values for name, terms in marginals.items()},
            _OUTSIDE: {name: _is_outside(trace[name]) for name in target.layout.names},
        }
        if "log_prior" in groups and not (enumerated and any(map(is_latent, _summed(every)))):
            computed["log_prior"] = {
                name: trace[name]["fn"].log_prob(trace[name]["value"])
                for name in target.layout.names
            }
        for name in (*priors, *observed):
            site = trace[name]
            together = any(name in terms.sites for terms in marginals.values())
            if "log_likelihood" in groups and not together:
                computed["log_likelihood"][name] = site["fn"].log_prob(site["value"])
        # New values of an observed site change what the model computes after it, of one in a scan
        # in later steps.
        in_scan = any(trace[name].get("_control_flow_done", False) for name in observed)
        by_run = apart or in_scan
        new = trace
        for name in observed:
            site = trace[name]
            if "prediction" in groups:
                for term, value in prediction_of((given if at_values else trace)[name]).items():
                    computed.setdefault(term, {})[name] = value
            if "predictive" in groups and not by_run:
                # There is a single site here: several are drawn in a run of the model.
                computed["predictive"] = {name: _new_observation(site, key)}
        if "predictive" in groups and by_run:
            prior = random.fold_in(key, 1)
            new = _run(target, data, values, indices, key, prior, hidden)
            computed["predictive"] = {name: new[name]["value"] for name in observed}
        at = given if at_values else new
        computed["alongside"] = {name: at[name]["value"] for name in alongside}
        return computed

    def chunk(
        values: Mapping[str, jax.Array],
        rng_key: jax.Array,
        number: jax.Array,
        draws: jax.Array,
        data: Data,
        indices: dict[str, Any],
        linear_at: tuple[jax.Array, jax.Array],
    ) -> tuple[Computed, dict[str, jax.Array]]:
        # A loop over keys compiles in a fraction of the time that a vectorised generator takes.
        keys = lax.map(
            lambda draw: random.fold_in(random.fold_in(rng_key, _STREAM - number), draw), draws
        )
        centre, moves = linear_at

        def one(draw: tuple[Mapping[str, jax.Array], jax.Array, jax.Array]) -> Computed:
            values, key, move = draw
            return at_draw(values, key, data, indices, centre, move)

        side_by_side: Callable[..., Computed] = partial(lax.map, one) if in_turn else jax.vmap(one)
        computed = side_by_side((values, keys, moves))
        if "observed" not in groups:
            return computed, {}
        trace = _run(target, data, {name: value[0] for name, value in values.items()}, indices)
        return computed, {name: trace[name]["value"] for name in observed}

    return Program(chunk, rarely=quick)
