"""Starting positions: the hosts' initialization strategies, kept where the density is finite."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from pyro.infer.autoguide import initialization
from torch import Tensor

from ppl_ext.errors import ModelCheckError
from pyro_ext.density.handlers import InitializationHandler, SiteTermsHandler, without_host_checks

if TYPE_CHECKING:
    from pyro_ext.density.layout import Data
    from pyro_ext.density.log_density import LogDensity

ROUNDS = 100


def _uniform_radius(strategy: Any) -> float | None:
    """Radius when the strategy is uniform in unconstrained space, which needs no model run."""
    if strategy is None:
        return 2.0
    if strategy is initialization.init_to_uniform:
        return 2.0
    if isinstance(strategy, partial) and strategy.func is initialization.init_to_uniform:
        return float(strategy.keywords.get("radius", 2.0))
    return None


def _draw(target: LogDensity, num: int, generator: torch.Generator, data: Data) -> Tensor:
    radius = _uniform_radius(target.init_strategy)
    if radius is not None:
        uniform = torch.rand(num, target.dim, generator=generator, dtype=target.dtype)
        return ((2.0 * uniform - 1.0) * radius).to(target.device)
    rows = []
    # Host strategies draw from the global generator, which is left as it was found.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), without_host_checks():
        seed = int(torch.randint(2**62, (), generator=generator))
        torch.manual_seed(seed)
        for _ in range(num):
            indices = target.rows_for_values()
            handler = InitializationHandler(target.init_strategy, indices)
            target.run(handler, (data.args, data.kwargs, indices))
            rows.append(target.layout.join(handler.positions))
    return torch.stack(rows).to(target.dtype)


def _is_good(target: LogDensity, z: Tensor, data: Data) -> Tensor:
    # One batch of rows is enough to tell; a full sweep could be long.
    score = target.score(z, data, target.first_rows())
    log_density = score.log_prior + score.log_likelihood
    return torch.isfinite(log_density) & torch.isfinite(score.score).all(dim=-1)


def draw_positions(target: LogDensity, num: int, generator: torch.Generator, data: Data) -> Tensor:
    """Draw ``num`` positions (num, D) with a finite log density and score.

    Raises
    ------
    ModelCheckError
        Some position stayed bad for 100 rounds.
    """
    z = _draw(target, num, generator, data)
    for _ in range(ROUNDS):
        good = _is_good(target, z, data)
        if bool(good.all()):
            return z
        bad = (~good).nonzero().squeeze(-1)
        z[bad] = _draw(target, len(bad), generator, data)
    good = _is_good(target, z, data)
    if bool(good.all()):
        return z
    position = z[int((~good).nonzero()[0, 0])]
    terms = site_terms(target, position, data)
    faults = {name: float(term) for name, term in terms.items() if not torch.isfinite(term)}
    where = ", ".join(f"'{name}' ({value})" for name, value in faults.items())
    raise ModelCheckError(
        "Cannot find valid initial parameters: the log density or its gradient is not finite at "
        f"site {where or '(gradient only)'} in {ROUNDS} draws. Expected finite values; check the "
        "data for NaN, the supports, and the init_strategy."
    )


def site_terms(target: LogDensity, z: Tensor, data: Data) -> dict[str, Tensor]:
    """Scaled and masked log density of each site at one flat vector z (D,)."""
    indices = target.first_rows()
    handler = SiteTermsHandler(target.layout.split(z), indices)
    with torch.no_grad(), without_host_checks():
        target.run(handler, (data.args, data.kwargs, indices))
    return handler.terms
