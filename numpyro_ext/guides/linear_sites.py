"""Linear operations of a NumPyro program on weights that a mean-field guide has drawn.

How they are found, for the noise of :mod:`ppl_ext.guides.row_noise`. The guide runs under a handler
that records its Normal draws. The model runs twice under handlers: once as it is, to take its
latent sites through the host's own handlers, and once as a function from its weights to its
observed distributions. That function is traced to a jaxpr, and evaluated equation by equation (a
jaxpr interpreter, as in JAX's documentation) with every ``dot_general`` and
``conv_general_dilated`` replaced that has a weight as an operand: flax, equinox and hand-written
``x @ w`` alike. The observed sites are then handed to the host with what came out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from numpyro import handlers
from numpyro.infer import ELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoContinuous, AutoGuideList
from numpyro.primitives import Messenger, apply_stack

from numpyro_ext.density.handlers import is_real
from ppl_ext.errors import ArgumentError
from ppl_ext.guides import row_noise

# Calls whose body is looked into, and operations that only lay a weight out otherwise.
_CALLS = frozenset({"jit", "pjit", "closed_call"})
_LAYOUT = frozenset(
    {"convert_element_type", "copy", "copy_p", "reshape", "rev", "squeeze", "transpose"}
)


class KeyedNoise(row_noise.RowNoise):
    """Noise by row from a random key."""

    def __init__(self, rng_key: Array) -> None:
        self._rng_key = rng_key

    def next_key(self) -> Array:
        """A new random key."""
        self._rng_key, key = jax.random.split(self._rng_key)
        return key


class RowNoiseELBO(row_noise.RowNoiseShell, ELBO):
    objectives = (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO)

    def __init__(
        self,
        elbo: ELBO,
        noise: Callable[[Array], row_noise.RowNoise],
        sites: Collection[str] | None = None,
    ) -> None:
        several = " with multi_sample_guide" if getattr(elbo, "multi_sample_guide", False) else ""
        ELBO.__init__(self, elbo.num_particles, elbo.vectorize_particles)
        self._wrap(elbo, noise, sites, several)

    def loss(
        self, rng_key: Any, param_map: Any, model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Any:
        model, guide = self._handled(model, guide)
        return self.elbo.loss(rng_key, param_map, model, guide, *args, **kwargs)

    def loss_with_mutable_state(
        self, rng_key: Any, param_map: Any, model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Any:
        model, guide = self._handled(model, guide)
        return self.elbo.loss_with_mutable_state(rng_key, param_map, model, guide, *args, **kwargs)

    def _handled(self, model: Any, guide: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        drawn: dict[str, Drawn] = {}

        def recorded_guide(*args: Any, **kwargs: Any) -> Any:
            recorder = _Recorder()
            with recorder:
                result = guide(*args, **kwargs)
            drawn.clear()
            drawn.update(_drawn(guide, recorder.sites))
            return result

        def noisy_model(*args: Any, **kwargs: Any) -> Any:
            noise = self._noise(numpyro.prng_key())
            return _run(model, args, kwargs, drawn, noise, self.sites)

        return noisy_model, recorded_guide


# -- the guide's draws -----------------------------------------------------------------------------


class Drawn(NamedTuple):
    """What the guide has drawn for a site: its value, the Normal's draw if it is one, and if not
    a word on what it is."""

    value: Array
    normal: row_noise.NormalDraw | None
    kind: str


class _Recorder(Messenger):
    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, dict[str, Any]] = {}

    def postprocess_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and not msg["is_observed"]:
            self.sites[msg["name"]] = msg


def _drawn(guide: Any, sites: Mapping[str, Any]) -> dict[str, Drawn]:
    drawn = {}
    for name, site in sites.items():
        value = site["value"]
        drawn[name] = Drawn(value, _normal_draw(site["fn"], value), row_noise.kind_of(site["fn"]))
    for flat in _flat_guides(guide):
        latent = drawn.get(f"_{flat.prefix}_latent")
        if latent is None:
            continue
        parts = (
            None
            if latent.normal is None
            else [flat._unpack_latent(values) for values in latent.normal]
        )
        for name, site in flat.prototype_trace.items():
            if name not in drawn or not is_real(getattr(site["fn"], "support", None)):
                continue
            normal = (
                None if parts is None else row_noise.NormalDraw(*(part[name] for part in parts))
            )
            drawn[name] = Drawn(drawn[name].value, normal, latent.kind)
    return drawn


def _flat_guides(guide: Any) -> Iterator[Any]:
    """Guides that draw all their sites as one flat vector."""
    if isinstance(guide, AutoContinuous):
        yield guide
    elif isinstance(guide, AutoGuideList):
        for part in guide._guides:
            yield from _flat_guides(part)


def _normal_draw(fn: Any, value: Array) -> row_noise.NormalDraw | None:
    base = row_noise.base_distribution(fn)
    if not isinstance(base, dist.Normal):
        return None
    shape = jnp.shape(value)
    return row_noise.NormalDraw(
        value, jnp.broadcast_to(base.loc, shape), jnp.broadcast_to(base.scale, shape)
    )


# -- the model -------------------------------------------------------------------------------------


class _Boundary(Messenger):
    """Between the model and the host's handlers: keeps observed sites from the latter."""

    def __init__(self, keys: Sequence[Any] | None = None) -> None:
        super().__init__()
        self.observed: dict[str, dict[str, Any]] = {}
        self.values: dict[str, Any] = {}
        self.latent: list[str] = []
        self.keys: list[Any] = []
        self._given = None if keys is None else list(keys)

    def process_message(self, msg: Any) -> None:
        kind = msg["type"]
        if kind in ("control_flow", "mutable"):
            raise ArgumentError(
                f"Expected a model without {kind} statements under noise by row, found "
                f"{msg.get('name', 'one')!r}: the rows have to be independent given the latent "
                "sites, and each weight applied outside of loops. Use the objective as it is."
            )
        if kind == "sample" and msg["is_observed"]:
            msg["stop"] = True
            self.observed[msg["name"]] = msg
        elif kind == "prng_key" and self._given is not None:
            msg["value"] = self._given.pop(0)

    def postprocess_message(self, msg: Any) -> None:
        kind = msg["type"]
        if kind == "prng_key":
            self.keys.append(msg["value"])
        elif kind in ("param", "plate") or (kind == "sample" and not msg["is_observed"]):
            self.values[msg["name"]] = msg["value"]
            if kind == "sample":
                self.latent.append(msg["name"])


def _run(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    drawn: Mapping[str, Drawn],
    noise: row_noise.RowNoise,
    sites: frozenset[str] | None,
) -> Any:
    first = _Boundary()
    with first:
        result = model(*args, **kwargs)
    row_noise.check_latent(noise.name, sites, first.latent)
    weights = {}
    for name in first.latent:
        if name in drawn and (sites is None or name in sites):
            row_noise.check_drawn(noise.name, name, drawn[name].value, first.values[name])
            weights[name] = _Weight.of_site(name, drawn[name])

    structure: list[Any] = []

    def observed_distributions(values: dict[str, Array]) -> list[Any]:
        data = {**first.values, **values}
        # What the model draws with keys of its own, such as dropout's masks, has to be the same in
        # both runs.
        second = _Boundary(first.keys)
        # The host's handlers have seen these sites in the first run, and a trace refuses a second
        # site of the same name.
        with handlers.block(), handlers.substitute(data=data), second:
            model(*args, **kwargs)
        distributions = {name: msg["fn"] for name, msg in second.observed.items()}
        leaves, treedef = jax.tree.flatten(distributions)
        structure.append(treedef)
        return leaves

    jaxpr = jax.make_jaxpr(observed_distributions)(
        {name: weight.draw.value for name, weight in weights.items()}
    )
    rewriting = _Rewriting(noise)
    # JAX orders dictionaries by their keys.
    ordered = [weights[name] for name in sorted(weights)]
    leaves = rewriting.evaluate(jaxpr.jaxpr, jaxpr.consts, ordered)
    leaves = [rewriting.plain(leaf, "a distribution's parameter") for leaf in leaves]
    distributions = jax.tree.unflatten(structure[-1], leaves)
    rewriting.check(weights, sites, distributions)
    for name, msg in first.observed.items():
        # Only now, with noise by row, do the handlers of the host see what is observed.
        msg["stop"] = False
        msg["fn"] = distributions[name]
        apply_stack(msg)
    return result


# -- the interpreter -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Weight:
    """A weight, possibly transposed or reshaped, on its way to where it is used."""

    site: str
    kind: str
    draw: row_noise.NormalDraw
    labels: tuple[Any, ...]
    is_normal: bool

    @staticmethod
    def of_site(name: str, drawn: Drawn) -> _Weight:
        value = jnp.asarray(drawn.value)
        # A stand-in, so that the weight is followed to where its use is refused.
        draw = row_noise.NormalDraw(value, value, value) if drawn.normal is None else drawn.normal
        return _Weight(name, drawn.kind, draw, tuple(range(value.ndim)), drawn.normal is not None)

    def laid_out(self, eqn: JaxprEqn) -> _Weight:
        draw = row_noise.NormalDraw(
            *(eqn.primitive.bind(value, **eqn.params) for value in self.draw)
        )
        name = eqn.primitive.name
        if name == "transpose":
            labels = tuple(self.labels[axis] for axis in eqn.params["permutation"])
        elif name == "squeeze":
            gone = eqn.params["dimensions"]
            labels = tuple(x for axis, x in enumerate(self.labels) if axis not in gone)
        elif name == "rev":
            # As the spatial axes of a transposed convolution's kernel are.
            turned = eqn.params["dimensions"]
            labels = tuple((x, name) if i in turned else x for i, x in enumerate(self.labels))
        elif name == "reshape":
            shape = draw.value.shape
            # Axes of a new shape are the same where they come from the same axes by the same shape.
            labels = tuple((self.labels, shape, axis) for axis in range(len(shape)))
        else:
            labels = self.labels
        return replace(self, draw=draw, labels=labels)


class _Rewriting(row_noise.WeightUses):
    """Evaluates a jaxpr with other results for linear operations on weights."""

    def plain(self, value: Any, use: str) -> Any:
        """The value of a weight that is not used linearly."""
        if not isinstance(value, _Weight):
            return value
        self._note_plain(value.site, use)
        return value.draw.value

    def evaluate(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        known = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for eqn in _needed(jaxpr):
            inputs = [read(atom) for atom in eqn.invars]
            known.update(zip(eqn.outvars, self._equation(eqn, inputs), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: JaxprEqn, inputs: list[Any]) -> list[Any]:
        weights = [value for value in inputs if isinstance(value, _Weight)]
        name = eqn.primitive.name
        if weights and name in _CALLS:
            body: ClosedJaxpr = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
            return self.evaluate(body.jaxpr, body.consts, inputs)
        if len(weights) == 1:
            if name in _LAYOUT and len(inputs) == 1:
                return [weights[0].laid_out(eqn)]
            if (use := _linear_use(eqn, inputs)) is not None:
                return [self._linear(weights[0], use)]
        values = [self.plain(value, name) for value in inputs]
        bound = eqn.primitive.get_bind_params(eqn.params)
        # Older versions of JAX give functions among the parameters apart.
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        outputs = eqn.primitive.bind(*functions, *values, **params)
        return list(outputs) if eqn.primitive.multiple_results else [outputs]

    def _linear(self, weight: _Weight, use: row_noise.LinearUse) -> Array:
        if not weight.is_normal:
            raise self._no_normal(weight.site, weight.kind)
        return self._replace(use)

    def check(
        self,
        weights: Mapping[str, _Weight],
        sites: Collection[str] | None,
        distributions: Mapping[str, Any],
    ) -> None:
        """See that what was asked for has happened, and that it was sound."""
        self._check(weights, sites, map(row_noise.row_shape, distributions.values()))


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations on which the results depend, in order."""
    wanted = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
    return kept[::-1]


def _linear_use(eqn: JaxprEqn, inputs: Sequence[Any]) -> row_noise.LinearUse | None:
    """The use of a weight in an equation, if it is one in which rows can be told."""
    if eqn.primitive.name == "dot_general":
        return _product(eqn, inputs)
    if eqn.primitive.name == "conv_general_dilated":
        return _convolution(eqn, inputs)
    return None


def _product(eqn: JaxprEqn, inputs: Sequence[Any]) -> row_noise.LinearUse | None:
    contracted, batch = eqn.params["dimension_numbers"]
    place = 0 if isinstance(inputs[0], _Weight) else 1
    weight, x = inputs[place], jnp.asarray(inputs[1 - place])
    of_weight, of_x = contracted[place], contracted[1 - place]
    # Rows are the first axis of x, along which nothing is summed.
    if any(batch) or x.ndim == len(of_x) or 0 in of_x:
        return None
    free = [axis for axis in range(len(weight.labels)) if axis not in of_weight]
    free_of_x = [axis for axis in range(x.ndim) if axis not in of_x]
    # The result has the free axes of the left operand, then those of the right one.
    start, start_of_x = (0, len(free)) if place == 0 else (len(free_of_x), 0)

    def apply(x: Array, w: Array) -> Array:
        return eqn.primitive.bind(*((w, x) if place == 0 else (x, w)), **eqn.params)

    return row_noise.LinearUse(
        weight.site,
        x,
        weight.draw,
        apply,
        rows=x.shape[0],
        row_axes=(0, start_of_x),
        in_axes=tuple(
            (weight.labels[axis], axis_of_x)
            for axis, axis_of_x in zip(of_weight, of_x, strict=True)
        ),
        out_axes=tuple((weight.labels[axis], start + i) for i, axis in enumerate(free)),
        positions=math.prod(x.shape[axis] for axis in free_of_x[1:]),
    )


def _convolution(eqn: JaxprEqn, inputs: Sequence[Any]) -> row_noise.LinearUse | None:
    numbers = eqn.params["dimension_numbers"]
    x, weight = inputs
    if not isinstance(weight, _Weight) or eqn.params["batch_group_count"] != 1:
        return None
    (row, channel, *_), (row_out, channel_out, *places) = numbers.lhs_spec, numbers.out_spec

    def apply(x: Array, w: Array) -> Array:
        return eqn.primitive.bind(x, w, **eqn.params)

    shape = jax.eval_shape(apply, x, weight.draw.value).shape

    return row_noise.LinearUse(
        weight.site,
        x,
        weight.draw,
        apply,
        rows=x.shape[row],
        row_axes=(row, row_out),
        in_axes=((weight.labels[numbers.rhs_spec[1]], channel),),
        out_axes=((weight.labels[numbers.rhs_spec[0]], channel_out),),
        positions=math.prod(shape[axis] for axis in places),
    )
