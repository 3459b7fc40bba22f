"""A guide that the host's ``SVI`` has fitted, as ``to_arviz`` looks at an engine.

Whichever objective fitted it (``Trace_ELBO``, ``TraceGraph_ELBO``, ``RenyiELBO``, ...), a guide is
a distribution that can be drawn from. Its draws are those of its flat density where it has one,
and the host's own otherwise, so that site-by-site and hand-written guides are taken too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax import Array
from jaxtyping import Float
from numpyro.infer import Predictive

from numpyro_ext.density import Data
from numpyro_ext.diagnostics.fit import FittedGuide, fitted_guide, target_of_model
from numpyro_ext.draws import key_or
from numpyro_ext.guides.flat_density import Parameters, has_flat_density
from numpyro_ext.programs import Program
from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared
from ppl_ext.diagnostics.fit import HOST_DRAWS, sites_of_guide
from ppl_ext.errors import ArgumentError


class HostFit(shared.HostFit):
    """A fitted guide with the model that it approximates.

    Parameters
    ----------
    guide : callable
        An autoguide or a hand-written guide, fitted by NumPyro's ``SVI``.
    params : mapping
        Its parameters, as ``SVI.get_params`` gives them.
    model : callable
        Its model.
    args, kwargs
        The model's arguments, with all rows of the data.
    passes : Passes, optional
        All rows, from a loader.

    Raises
    ------
    ArgumentError
        The parameters or the guide do not belong to the model, or the arguments hold only some
        rows of a plate.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        params: Any,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        passes: Passes | None = None,
    ) -> None:
        self.guide = guide
        self.fitted: FittedGuide | None = None
        if has_flat_density(guide):
            self.fitted = fitted_guide(guide, params, model, args, kwargs, None, passes)
            self.target, self._data = self.fitted.target, self.fitted.data
            return
        if not isinstance(params, Mapping):
            raise ArgumentError(
                f"Expected the guide's parameters, as svi.get_params(state) gives them, found "
                f"{type(params).__name__}."
            )
        self.target, self._data = target_of_model(model, args, kwargs, held=params, passes=passes)

    def get_samples(
        self, params: Mapping[str, Any], rng_key: Array | None = None, num_samples: int = HOST_DRAWS
    ) -> dict[str, Array]:
        """Draws of the latent sites, leading dimension = draws."""
        key = key_or(rng_key)
        if self.fitted is not None:
            density, target = self.fitted.density, self.target

            def draw(parameters: Parameters, key: Array, data: Data) -> dict[str, Array]:
                theta = density.sample(parameters, key, num_samples).astype(target.dtype)
                return target.constrain(theta, data)

            program = Program(draw, rarely=True)
            drawn: dict[str, Array] = program(self.fitted.parameters, key, self._data)
            return drawn
        predictive = Predictive(self.guide, params=dict(params), num_samples=num_samples)
        drawn = predictive(key, *self._data.args, **self._data.kwargs)
        return sites_of_guide(self.target.layout.names, drawn)

    def sample_statistics(
        self, params: Mapping[str, Any], positions: Float[Array, "S D"]
    ) -> dict[str, Array]:
        """Log density of the guide at flat positions (S, D), where it can be evaluated."""
        return self._log_q(positions)
