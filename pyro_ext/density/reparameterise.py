"""Sites whose scale is latent, non-centred by Pyro's own handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, MultivariateNormal
from pyro.infer.reparam import LocScaleReparam, TransformReparam
from pyro.infer.reparam.reparam import Reparam
from torch import Tensor
from torch.distributions import Independent, TransformedDistribution, constraints, transforms

from ppl_ext.target import noncentred as shared
from pyro_ext.density.handlers import global_generator, running
from pyro_ext.density.layout import Data, with_own_containers
from pyro_ext.density.log_density import LogDensity

# Evaluations see to it that these do not raise where a matrix is singular, nor their derivatives.
_VECTORS = shared.Vectors(MultivariateNormal, torch, torch.linalg.cholesky, torch.linalg.solve)
_FORMS = shared.Forms((Independent,), TransformedDistribution, transforms, _VECTORS)


class StandardisedReparam(shared.Standardised, Reparam):
    """A site whose entries are standardised given their data."""

    def apply(self, msg: Any) -> dict[str, Any]:
        base, event_dim = self._unwrap(msg["fn"])
        own, value_of, entry_of = self.of(base, _VECTORS)
        value = msg["value"]
        entry = None if value is None else entry_of(value)
        infer = {"is_observed": msg["is_observed"]}
        own = self._wrap(own, event_dim)
        entry = pyro.sample(f"{msg['name']}_decentered", own, obs=entry, infer=infer)
        value = value_of(entry) if value is None else value
        # The value is given by what was drawn: as a deterministic site, it adds nothing.
        fixed = Delta(value, event_dim=event_dim).mask(False)
        return {"fn": fixed, "value": value, "is_observed": True}


def noncentred(
    model: Callable[..., Any], moves: shared.Moves | None = None, names: Sequence[str] = ()
) -> shared.Noncentred:
    """A program with sites non-centred, or that may be; ``names`` are its sites as written."""
    return shared.Noncentred(model, poutine.reparam, moves, names)


def moves_of(target: LogDensity, data: Data) -> shared.Moves:
    """What of a target's model is to be written non-centred: sites of latent scale.

    Only where the hosts' handlers take the site's distribution as it is. Sites that ``mask`` or
    ``scale`` count otherwise than once, whose Jacobian would be counted so as well, are left alone,
    and so are those inside a subsampled plate.
    """
    sites = list[shared.Movable]()
    nodes = _nodes(target, data, torch.zeros(target.dim, dtype=target.dtype))
    elsewhere: dict[str, Any] = {}
    for name in target.layout.names:
        if name in target.local_sites:
            continue
        site = nodes[name]
        is_plain = not isinstance(site["scale"], Tensor) and site["scale"] == 1.0
        if site["mask"] is not None or not is_plain:
            continue
        base, is_monotone = _FORMS.base_of(site["fn"])
        parameters = set(getattr(base, "arg_constraints", ()))
        is_scalar = {"loc", "scale"} <= parameters and base.support is constraints.real
        length = _FORMS.length_of(base)
        if not (is_scalar or length):
            continue
        scale = "scale_tril" if length else "scale"
        if getattr(base, scale).requires_grad:
            # A scale to the power 0, as non-centred programs have, wants a gradient and is none.
            elsewhere = elsewhere or _nodes(
                target, data, torch.linspace(0.1, 0.4, target.dim, dtype=target.dtype)
            )
            other, _ = _FORMS.base_of(elsewhere[name]["fn"])
            if torch.equal(getattr(base, scale), getattr(other, scale)):
                continue
            others = tuple(sorted(parameters - {"loc", "scale"}))
            sites.append(shared.Movable(name, is_monotone, others, length))
    every = {each.name: nodes[each.name]["fn"] for each in sites}
    shifted = frozenset(name for name, each in every.items() if _FORMS.is_shifted(each))
    return shared.moves_among(
        sites, LocScaleReparam, TransformReparam, StandardisedReparam, shifted
    )


def _nodes(target: LogDensity, data: Data, position: Tensor) -> dict[str, Any]:
    """Nodes of a trace at a flat position, where what is computed from latents wants gradients."""
    found = target.constrain(position[None], data)
    values = {
        name: found[name][0].detach().clone().requires_grad_()
        for name in target.layout.names
        if name not in target.local_sites
    }
    rows = target.first_rows() or None
    with global_generator(0), running(target.bound.held, rows), torch.enable_grad():
        model = poutine.trace(poutine.condition(target.model, data=values))
        args, kwargs = with_own_containers(data.args, data.kwargs)
        nodes: dict[str, Any] = model.get_trace(*args, **kwargs).nodes
    return nodes


@torch.no_grad()
def moved_values(target: LogDensity, data: Data, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values (n, ...) of a moved program's latent sites, from those of its sites as written."""
    program: Any = target.model
    rows, latents = target.first_rows() or None, program.moves.latents
    given = {name: value for name, value in values.items() if name not in target.local_sites}
    found = {name: value for name, value in values.items() if name not in latents}
    found |= {latent: torch.empty_like(values[name]) for name, latent in latents.items()}
    for number in range(len(next(iter(values.values())))):
        one = {name: value[number] for name, value in given.items()}
        with global_generator(0), running(target.bound.held, rows):
            model = poutine.trace(poutine.condition(program.model, data=one))
            args, kwargs = with_own_containers(data.args, data.kwargs)
            nodes = model.get_trace(*args, **kwargs).nodes
        for name, latent in latents.items():
            found[latent][number] = _FORMS.standard(nodes[name]["fn"], one[name])
    return found
