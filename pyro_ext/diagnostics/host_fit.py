"""A guide that the host's ``SVI`` has fitted, as ``to_arviz`` looks at an engine.

Whichever objective fitted it (``Trace_ELBO``, ``TraceGraph_ELBO``, ``RenyiELBO``, ...), a guide is
a distribution that can be drawn from. Its draws are those of its flat density where it has one,
and the host's own otherwise, so that site-by-site and hand-written guides are taken too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from pyro.infer import Predictive
from torch import Tensor

from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared
from ppl_ext.diagnostics.fit import HOST_DRAWS, sites_of_guide
from pyro_ext.density.handlers import global_generator
from pyro_ext.diagnostics.fit import (
    FittedGuide,
    diagnostic_generator,
    fitted_guide,
    target_of_model,
)
from pyro_ext.guides.flat_density import has_flat_density


class HostFit(shared.HostFit):
    """A fitted guide with the model that it approximates.

    Parameters
    ----------
    guide : callable
        An autoguide or a hand-written guide, fitted by Pyro's ``SVI``.
    model : callable
        Its model.
    args, kwargs
        The model's arguments, with all rows of the data.
    seed : int
        Seed of the draws, which leave torch's global generator as it is.
    passes : Passes, optional
        All rows, from a loader.

    Raises
    ------
    ArgumentError
        The guide has not been fitted or does not belong to the model, or the arguments hold only
        some rows of a plate.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        seed: int = 0,
        passes: Passes | None = None,
    ) -> None:
        self.guide = guide
        self._seed = seed
        self.fitted: FittedGuide | None = None
        if has_flat_density(guide):
            self.fitted = fitted_guide(guide, model, args, kwargs, passes=passes)
            self.target, self._data = self.fitted.target, self.fitted.data
        else:
            parameters = guide.parameters() if isinstance(guide, torch.nn.Module) else iter(())
            dtype = next((parameter.dtype for parameter in parameters), None)
            self.target, self._data = target_of_model(
                model, args, kwargs, dtype=dtype, passes=passes
            )

    @torch.no_grad()
    def get_samples(self, num_samples: int = HOST_DRAWS) -> dict[str, Tensor]:
        """Draws of the latent sites, leading dimension = draws."""
        if self.fitted is not None:
            theta = self.fitted.draw(diagnostic_generator(self._seed), num_samples)
            return self.target.constrain(theta, self._data)
        generator = diagnostic_generator(self._seed)
        with global_generator(int(torch.randint(2**62, (), generator=generator))):
            drawn = Predictive(self.guide, num_samples=num_samples)(
                *self._data.args, **self._data.kwargs
            )
        return sites_of_guide(self.target.layout.names, drawn)

    @torch.no_grad()
    def sample_statistics(self, positions: Float[Tensor, "S D"]) -> dict[str, Tensor]:
        """Log density of the guide at flat positions (S, D), where it can be evaluated."""
        return self._log_q(positions)
