"""Starting positions: draws of the init strategy, kept where density and score are finite."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from pyro.infer.autoguide import initialization
from torch import Tensor

from ppl_ext.arguments import nonfinite_arguments
from ppl_ext.errors import ModelCheckError
from ppl_ext.target.scores import tempered
from pyro_ext.density.evaluation import Evaluation
from pyro_ext.density.handlers import (
    InitializationHandler,
    SiteTermsHandler,
    global_generator,
    without_host_checks,
)
from pyro_ext.density.layout import Data

TRIES = 100  # as many as the hosts' samplers make


class StartingPositions:
    """Draws starting positions."""

    def __init__(self, evaluation: Evaluation, init_strategy: Any) -> None:
        self._evaluation = evaluation
        self._bound = evaluation.bound
        self._strategy = init_strategy

    def _draw(self, num: int, generator: torch.Generator, data: Data) -> Float[Tensor, "P D"]:
        bound = self._bound
        if (radius := _uniform_radius(self._strategy)) is not None:
            shape = (num, bound.layout.dim)
            uniform = torch.rand(shape, generator=generator, dtype=bound.dtype)
            return ((2.0 * uniform - 1.0) * radius).to(bound.device)
        return self._by_strategy(self._strategy, num, generator, data)

    def from_prior(self, num: int, generator: torch.Generator, data: Data) -> Float[Tensor, "P D"]:
        """Positions of draws of the prior, by a forward run of the model for each.

        Raises
        ------
        NotImplementedError
            A latent site has a distribution without draws, as an improper one.
        """
        return self._by_strategy(_drawn, num, generator, data, enumerated=False)

    def _by_strategy(
        self, strategy: Any, num: int, generator: torch.Generator, data: Data, **options: bool
    ) -> Float[Tensor, "P D"]:
        """Positions by runs of the model, with the options of ``BoundModel.run``."""
        bound, rows = self._bound, []
        # Host strategies draw from the global generator, which is left as it was found.
        seed = int(torch.randint(2**62, (), generator=generator))
        with global_generator(seed), torch.no_grad(), without_host_checks():
            for _ in range(num):
                indices = bound.rows_for_values()
                handler = InitializationHandler(strategy, indices)
                bound.run(handler, (data.args, data.kwargs, indices), **options)
                rows.append(bound.layout.join(handler.positions))
        return torch.stack(rows).to(bound.dtype)

    def _is_finite(self, z: Float[Tensor, "P D"], data: Data) -> Bool[Tensor, " P"]:
        # One batch of rows is enough to tell; a full sweep could be long.
        found = self._evaluation.batch("score", z, data, self._bound.first_rows())
        finite = torch.isfinite(found.log_prior + found.log_likelihood)
        return finite & torch.isfinite(found.score).all(dim=-1)

    def positions(self, num: int, generator: torch.Generator, data: Data) -> Float[Tensor, "P D"]:
        """Positions where density and score are finite.

        Raises
        ------
        ModelCheckError
            After 100 draws there is none; the message names the site at fault.
        """
        z = self._draw(num, generator, data)
        for _ in range(TRIES):
            bad = (~self._is_finite(z, data)).nonzero().squeeze(-1)
            if not len(bad):
                break
            # Only those: positions that are finite stay the draws that they are.
            z[bad] = self._draw(len(bad), generator, data)
        else:
            finite = self._is_finite(z, data)
            if not bool(finite.all()):
                raise self._nowhere_finite(z[int((~finite).nonzero()[0, 0])], data)
        if self._evaluation.mode == "loop":
            self._check_slope(z[:1], data)
        return z

    def _check_slope(self, z: Float[Tensor, "1 D"], data: Data) -> None:
        """See that the score is the slope of the density, of models that take values out of torch.

        What depends on a value that was taken out, as by ``float`` or ``.item()``, is a constant
        for the gradient.

        Raises
        ------
        ModelCheckError
            It is another, at two lengths of a step.
        """
        indices = self._bound.first_rows()
        direction = torch.ones_like(z) / math.sqrt(z.shape[1])
        slope = float((self._evaluation.batch("score", z, data, indices).score * direction).sum())
        # Two lengths: where the density bends, the longer step differs from the slope, and where it
        # is rounded, the shorter one.
        for step in (1e-2, 1e-3):
            ends = torch.cat([z + step * direction, z - step * direction])
            log_prior, log_likelihood = self._evaluation.batch("value", ends, data, indices)
            temperature = self._evaluation.temperature
            above, below = tempered(log_prior, log_likelihood, temperature).tolist()
            found = (above - below) / (2.0 * step)
            # Both densities are rounded by about eps times their size, and the step divides that.
            rounding = 100.0 * torch.finfo(z.dtype).eps * max(abs(above), abs(below), 1.0) / step
            if abs(found - slope) <= 0.1 * max(abs(found), abs(slope)) + rounding:
                return
        raise ModelCheckError(
            f"The density cannot be differentiated: its gradient is {slope:.4g} in a direction in "
            f"which it rises by {found:.4g}. Expected torch's operations on everything that "
            "depends on a latent site: a value that is taken out by float() or .item() is a "
            "constant for the gradient."
        )

    def _nowhere_finite(self, position: Tensor, data: Data) -> ModelCheckError:
        indices = self._bound.first_rows()
        handler = SiteTermsHandler(self._bound.layout.split(position), indices)
        with torch.no_grad(), without_host_checks():
            self._bound.run(handler, (data.args, data.kwargs, indices))
        faults = {n: float(term) for n, term in handler.terms.items() if not torch.isfinite(term)}
        where = ", ".join(f"'{name}' ({value})" for name, value in faults.items())
        return ModelCheckError(
            "Cannot find valid initial parameters: the log density or its gradient is not finite "
            f"at site {where or '(gradient only)'} in {TRIES} draws. Expected finite values; check "
            "the data for NaN, the supports, and the init_strategy."
            + nonfinite_arguments(self._bound.model, data.args, data.kwargs)
        )


def _drawn(site: Any) -> Tensor:
    """A value of a site from its own distribution."""
    return site["fn"].sample()


def _uniform_radius(strategy: Any) -> float | None:
    """Radius when the strategy is uniform in unconstrained space, which needs no model run."""
    if strategy is None or strategy is initialization.init_to_uniform:
        return 2.0
    if isinstance(strategy, partial) and strategy.func is initialization.init_to_uniform:
        return float(strategy.keywords.get("radius", 2.0))
    return None
