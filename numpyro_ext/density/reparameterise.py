"""Sites whose scale is latent, non-centred by NumPyro's own handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax import Array
from numpyro import handlers
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    GaussianRandomWalk,
    Independent,
    MultivariateNormal,
    TransformedDistribution,
    constraints,
    transforms,
)
from numpyro.infer.reparam import LocScaleReparam, Reparam, TransformReparam
from numpyro.primitives import Messenger

from numpyro_ext.density.handlers import Site
from numpyro_ext.density.index_use import outputs_from
from numpyro_ext.density.layout import Data
from numpyro_ext.density.log_density import LogDensity
from numpyro_ext.programs import Program
from ppl_ext.target import noncentred as shared


def _as_vectors(fn: Distribution) -> Distribution:
    """A random walk as the multivariate Normal that it is; others as they are."""
    if not isinstance(fn, GaussianRandomWalk):
        return fn
    sums = jnp.tril(jnp.ones((fn.num_steps, fn.num_steps)))
    return MultivariateNormal(scale_tril=jnp.asarray(fn.scale)[..., None, None] * sums)


_VECTORS = shared.Vectors(MultivariateNormal, jnp, jnp.linalg.cholesky, jnp.linalg.solve)
_FORMS = shared.Forms(
    (Independent, ExpandedDistribution), TransformedDistribution, transforms, _VECTORS, _as_vectors
)


class StandardisedReparam(shared.Standardised, Reparam):
    """A site whose entries are standardised given their data."""

    def __call__(self, name: str, fn: Any, obs: Any) -> tuple[None, Array]:
        base, shape, event_dim = self._unwrap(fn)
        own, value_of, _ = self.of(_as_vectors(base), _VECTORS)
        own = self._wrap(own, shape, event_dim)
        return None, value_of(numpyro.sample(f"{name}_decentered", own))


class _Expanded(Messenger):
    """Distributions have what sites have as their ``sample_shape``, which the handler forgets."""

    def process_message(self, msg: Site) -> None:
        """Expand a site's distribution."""
        if msg["type"] == "sample" and (shape := msg["kwargs"].get("sample_shape")):
            fn = msg["fn"]
            msg["fn"] = fn.expand((*shape, *fn.batch_shape))
            msg["kwargs"] = {**msg["kwargs"], "sample_shape": ()}


def _reparam(model: Callable[..., Any], config: dict[str, Any]) -> Callable[..., Any]:
    moved: Callable[..., Any] = handlers.reparam(_Expanded(model), config=config)
    return moved


def noncentred(
    model: Callable[..., Any], moves: shared.Moves | None = None, names: Sequence[str] = ()
) -> shared.Noncentred:
    """A program with sites non-centred, or that may be; ``names`` are its sites as written."""
    return shared.Noncentred(model, _reparam, moves, names)


def moves_of(target: LogDensity, data: Data) -> shared.Moves:
    """What of a target's model is to be written non-centred: sites of latent scale.

    Only where the hosts' handlers take the site's distribution as it is. Sites that ``mask`` or
    ``scale`` count otherwise than once, whose Jacobian would be counted so as well, are left alone,
    and so are those inside a subsampled plate.
    """
    bound = target.bound
    kinds = dict[str, shared.Movable]()
    shifted = set[str]()

    def scales(position: Array, data: Data) -> dict[str, Array]:
        found = {}
        for name, site in bound.trace(position, data, bound.first_rows()).items():
            if name not in bound.layout.names or name in bound.local_sites:
                continue
            if site.get("_control_flow_done", False) or site.get("scale") is not None:
                continue  # scan runs its body again with values, which the handler refuses
            if _FORMS.is_shifted(site["fn"]):
                shifted.add(name)
            base, is_monotone = _FORMS.base_of(site["fn"])
            names = set(getattr(base, "arg_constraints", ()))
            if length := _FORMS.length_of(base):
                kinds[name] = shared.Movable(name, is_monotone, (), length)
                found[name] = base.scale_tril
            elif {"loc", "scale"} <= names and base.support is constraints.real:
                others = tuple(sorted(names - {"loc", "scale"}))
                kinds[name] = shared.Movable(name, is_monotone, others, 0)
                found[name] = base.scale
        return found

    position = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    program = jax.make_jaxpr(scales)(position, target.arguments.as_evaluated(data)).jaxpr
    # A dictionary's leaves come in the order of its sorted keys. A scale that no operation leads to
    # from the position is no latent one.
    found = zip(sorted(kinds), outputs_from(program, 1), strict=True)
    sites = [kinds[name] for name, is_latent in found if is_latent]
    own = LocScaleReparam, TransformReparam, StandardisedReparam
    return shared.moves_among(sites, *own, frozenset(shifted))


def moved_values(target: LogDensity, data: Data, values: Mapping[str, Array]) -> dict[str, Array]:
    """Values (n, ...) of a moved program's latent sites, from those of its sites as written."""
    program: Any = target.model
    latents, bound = program.moves.latents, replace(target.bound, model=program.model)
    given = {name: value for name, value in values.items() if name not in target.local_sites}

    def one(values: dict[str, Array], data: Data) -> dict[str, Array]:
        model = handlers.substitute(bound.controlled(bound.first_rows()), data=values)
        trace, found = bound.run(model, data), {}
        for name, latent in latents.items():
            found[latent] = _FORMS.standard(trace[name]["fn"], values[name])
        return found

    run = Program(jax.vmap(one, (0, None)), rarely=True)
    found = run(given, target.arguments.as_evaluated(data))
    return {**{name: each for name, each in values.items() if name not in latents}, **found}
