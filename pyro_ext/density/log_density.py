"""The target of every engine: a Pyro model and its arguments as a flat log density.

This is the only room that runs the model. Everything else sees particles ``z`` of shape
(P, D) in unconstrained space and asks for log densities, scores (gradients with respect to
``z``) and constrained values.

The log density is split in two. The *prior part* holds every latent site with log|det J| of
its transform, and ``factor`` statements outside every plate. The *likelihood part* holds
observed sites, and factors inside a plate. Scales (of plates, nested plates and
``poutine.scale``) and masks apply to each site, and to its log|det J|, as Pyro applies them to
its log density. With rows b of a plate of N rows drawn, the plate's sites are scaled by N/|b|,
so that a minibatch log density is an unbiased estimate of the full one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.density import check_all_rows, nothing_to_temper, tempered
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from ppl_ext.options import check_count, check_number
from pyro_ext.density.arguments import as_data, partial_plates
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.check import check_model
from pyro_ext.density.evaluation import Evaluation, Score, ScoreParts, differentiated
from pyro_ext.density.graph import BatchedFunction, as_arguments
from pyro_ext.density.handlers import without_host_checks
from pyro_ext.density.layout import Data, Indices, Layout
from pyro_ext.density.outputs import Output, OutputHandler
from pyro_ext.density.spaces import check_values, constrain, unconstrain
from pyro_ext.density.start import Start
from pyro_ext.density.sweep import sum_over_rows, sweep


class LogDensity:
    """Flat unconstrained log density of a Pyro model.

    Parameters
    ----------
    model : callable
        Pyro model; a function or a ``PyroModule``. It is used as it is.
    args, kwargs
        Arguments that the model is run with to find its structure.
    init_strategy : callable, optional
        Strategy of ``pyro.infer.autoguide.initialization`` for :meth:`initial_positions`.
        Default: uniform on (-2, 2) in unconstrained space, as the hosts' samplers do.
    likelihood_temperature : float
        The likelihood part is divided by this; 1 is the posterior.
    particle_chunk : int, optional
        At most this many particles are evaluated at once. Default: all.
    data_chunk : int, optional
        A full-data sweep evaluates about this many rows at once. Default: 2048.
    dtype : torch.dtype, optional
        Default: torch's default dtype.
    evaluation : {"graph", "inductor", "handlers", "loop"}
        See :class:`~pyro_ext.density.graph.BatchedFunction`. With "graph" and "inductor" tensors
        that the model closes over are constants: pass data as arguments, or call
        :meth:`retrace` after changing them.
    allow_local_latents : bool
        Whether latents inside a subsampled plate are accepted.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted; see :mod:`pyro_ext.density.check`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        init_strategy: Callable[..., Any] | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        dtype: torch.dtype | None = None,
        evaluation: str = "graph",
        allow_local_latents: bool = True,
    ) -> None:
        check_number("likelihood_temperature", likelihood_temperature)
        for name, chunk in (("particle_chunk", particle_chunk), ("data_chunk", data_chunk)):
            check_count(name, chunk, optional=True)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ArgumentError(
                f"Expected dtype to be a torch.dtype such as torch.float64, found {dtype!r}."
            )
        self.init_strategy = init_strategy
        self.likelihood_temperature = float(likelihood_temperature)
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk
        data = as_data(model, args, dict(kwargs or {}))
        structure = check_model(
            model, data.args, data.kwargs, allow_local_latents=allow_local_latents
        )
        if data_chunk is not None and not structure.plates:
            raise ArgumentError(
                f"data_chunk={data_chunk} has nothing to divide: the model has no subsampled plate "
                "whose rows it looks up. Write the data plate as `with pyro.plate(name, N, "
                "subsample_size=B) as rows:` and index the data by rows, or leave data_chunk out."
            )
        without = bool(getattr(model, "parameter_sites", ())) and not structure.has_likelihood
        if self.likelihood_temperature != 1.0 and without:
            raise ArgumentError(nothing_to_temper(likelihood_temperature))
        self.bound = bound = BoundModel(
            model,
            structure.layout,
            structure.plates,
            structure.batch_plates,
            structure.local_sites,
            structure.observed_sites,
            structure.parameters,
            torch.get_default_dtype() if dtype is None else dtype,
            structure.device,
        )
        self.model = model
        self.layout: Layout = bound.layout
        self.dim: int = bound.layout.dim
        self.dtype = bound.dtype
        self.device = bound.device
        self.plates = bound.plates
        self.batch_plates = bound.batch_plates
        self.local_sites = bound.local_sites
        self.observed_sites = bound.observed_sites
        self.parameter_sites: tuple[str, ...] = bound.parameter_sites
        if structure.parameter_names:
            warnings.warn(
                "Parameters without a prior are held at their present values: "
                f"{', '.join(structure.parameter_names)}. Give them priors (PyroSample, or "
                "pyro.nn.module.to_pyro_module_ and a prior for each parameter) to infer them.",
                HeldParameterWarning,
                stacklevel=2,
            )
        self._evaluation = Evaluation(
            bound, self.likelihood_temperature, particle_chunk, evaluation
        )
        self._start = Start(self._evaluation, init_strategy)
        self._constrain = self.lift(differentiated(partial(constrain, bound)))
        self._unconstrain = BatchedFunction(
            differentiated(partial(unconstrain, bound)), "handlers", particle_chunk
        )

    def lift(self, single: Callable[..., Any], *, drawing: bool = False) -> BatchedFunction:
        """A function of one position and (args, kwargs, row indices), for many positions.

        It is evaluated as the target is, by a traced graph unless told otherwise; one particle
        after another where it is ``drawing`` random numbers.
        """
        return self._evaluation.lift(single, drawing=drawing)

    @property
    def batch_fraction(self) -> float:
        """Rows of one evaluation over rows of the full data (1 without subsampled plates)."""
        plates = [*self.plates.values(), *self.batch_plates.values()]
        return math.prod(plate.subsample_size / plate.size for plate in plates)

    @property
    def batch_arguments(self) -> bool:
        """Whether a plate is smaller than its size because a batch was passed as arguments."""
        return bool(self.batch_plates)

    @property
    def evaluation(self) -> str:
        """How scores are evaluated now, after any fallback."""
        return self._evaluation.mode

    def retrace(self) -> None:
        """Trace the model again at the next evaluation (after closed-over tensors changed)."""
        self._evaluation.retrace()
        self._constrain.retrace()

    def writing_into(self, buffer: Tensor | None) -> AbstractContextManager[None]:
        """Let the first score in this context be written into ``buffer``, where that is possible.

        ``buffer`` is a score that nobody needs any more, or None.
        """
        return self._evaluation.writing_into(buffer)

    def run(self, handler: Any, arguments: Any) -> dict[str, tuple[int, int]]:
        """Run the model once under ``handler``, with (args, kwargs, row indices).

        Returns the size of each subsampled plate, and the number of rows that it asks for.
        """
        return self.bound.run(handler, arguments)

    # -- arguments ----------------------------------------------------------------------------

    def bind(self, *args: Any, **kwargs: Any) -> Data:
        """The model's arguments as :class:`Data`, checked against its signature.

        Raises
        ------
        ArgumentError
            When the model cannot be called with these arguments.
        """
        return as_data(self.model, args, kwargs)

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        """Plates that arguments hold a batch of: name to all rows, and those that are held."""
        return partial_plates(self.bound, data)

    def require_all_rows(self, data: Data, advice: str) -> None:
        """See that arguments hold every row of every plate whose rows the engine does not choose.

        ``advice`` says in the error what to do.

        Raises
        ------
        ArgumentError
            They hold a batch.
        """
        check_all_rows(self.partial_plates(data), advice)

    def all_rows(self) -> dict[str, Tensor]:
        """Row indices of the full data for every plate that the model subsamples itself."""
        return self.bound.all_rows()

    def first_rows(self) -> dict[str, Tensor]:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return self.bound.first_rows()

    # -- values and scores ----------------------------------------------------------------------

    def evaluate(
        self, z: Float[Tensor, " D"], data: Data, indices: Indices | None = None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Log prior and log likelihood, two scalars, at one position (D,).

        Plain code without ``vmap``, for callers that build their own derivatives by
        ``torch.func``.
        """
        with without_host_checks():
            return self._evaluation.value(z, self._arguments(data, indices))

    def _arguments(self, data: Data, indices: Indices | None) -> Any:
        return as_arguments(data.args, data.kwargs, self.bound.check_indices(indices))

    def log_prior_and_likelihood(
        self, z: Float[Tensor, "P D"], data: Data, indices: Indices | None = None
    ) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """Log prior and log likelihood of a (mini)batch at positions.

        Scales, masks and Jacobians are applied, the temperature is not. ``indices`` hold the rows
        of each subsampled plate: (rows,) for all positions, or (P, rows), those of each.

        Raises
        ------
        ArgumentError
            When the model leaves its rows to the engine and ``indices`` are not given.
        """
        return self._evaluation.batch(self._evaluation.values, z, data, indices)

    def log_density(
        self, z: Float[Tensor, "P D"], data: Data, indices: Indices | None = None
    ) -> Float[Tensor, " P"]:
        """Log prior + log likelihood / temperature of a (mini)batch."""
        values = self.log_prior_and_likelihood(z, data, indices)
        return tempered(*values, self.likelihood_temperature)

    def score(self, z: Float[Tensor, "P D"], data: Data, indices: Indices | None = None) -> Score:
        """Tempered score of one (mini)batch at positions."""
        return self._evaluation.batch(self._evaluation.scores, z, data, indices)

    def score_parts(
        self, z: Float[Tensor, "P D"], data: Data, indices: Indices | None = None
    ) -> ScoreParts:
        """Gradients of prior and likelihood apart, of one (mini)batch."""
        return self._evaluation.batch(self._evaluation.parts, z, data, indices)

    # -- all rows -------------------------------------------------------------------------------

    def _full(self, function: Callable[..., Any], z: Tensor, data: Data) -> list[Tensor]:
        z = self.bound.check_positions(z)
        return sum_over_rows(
            self.plates,
            self.data_chunk,
            self.device,
            lambda rows: function(z, as_arguments(data.args, data.kwargs, rows)),
        )

    def full_score(self, z: Float[Tensor, "P D"], data: Data) -> Score:
        """Exact tempered score over all rows, in chunks; the ragged tail is included."""
        return Score(*self._full(self._evaluation.scores, z, data))

    def full_score_parts(self, z: Float[Tensor, "P D"], data: Data) -> ScoreParts:
        """Exact gradients of prior and likelihood apart, over all rows."""
        return ScoreParts(*self._full(self._evaluation.parts, z, data))

    def full_log_prior_and_likelihood(
        self, z: Float[Tensor, "P D"], data: Data
    ) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """Exact log prior and log likelihood over all rows."""
        log_prior, log_likelihood = self._full(self._evaluation.values, z, data)
        return log_prior, log_likelihood

    def full_log_density(self, z: Float[Tensor, "P D"], data: Data) -> Float[Tensor, " P"]:
        """Exact log prior + log likelihood / temperature over all rows."""
        values = self.full_log_prior_and_likelihood(z, data)
        return tempered(*values, self.likelihood_temperature)

    def sweep(self, chunk: int | None = None) -> list[tuple[float, dict[str, Tensor]]]:
        """The chunks of a full-data sweep: weights (summing to 1) and row indices.

        Several plates give the cross product of their chunks. Without a subsampled plate the
        sweep is the arguments as they are.
        """
        check_count("chunk", chunk, optional=True)
        return sweep(self.plates, chunk or self.data_chunk, self.device)

    # -- spaces -------------------------------------------------------------------------------

    def constrain(self, z: Float[Tensor, "P D"], data: Data) -> dict[str, Tensor]:
        """Latent sites in their supports, each (P, ...), from positions.

        Supports are those of the run itself, so a support that depends on another latent site is
        right; local latents have their full length. Programs whose parameters are deterministic
        sites (``parameter_sites``) have these as well.
        """
        arguments = as_arguments(data.args, data.kwargs, self.bound.rows_for_values())
        return self._constrain(self.bound.check_positions(z), arguments)

    def unconstrain(self, values: Mapping[str, Tensor], data: Data) -> Float[Tensor, "P D"]:
        """Positions from constrained latent sites (P, ...): inverse of ``constrain``.

        Raises
        ------
        ArgumentError
            When a latent site is missing.
        """
        layout, flat = check_values(self.bound, values)
        arguments = as_arguments(data.args, data.kwargs, self.bound.rows_for_values())
        return self._unconstrain(flat, (layout, arguments))

    # -- starting points ----------------------------------------------------------------------

    def initial_positions(
        self, num: int, generator: torch.Generator, data: Data
    ) -> Float[Tensor, "P D"]:
        """Starting positions by the init strategy, with finite density and score.

        Positions that are not finite are drawn again, up to 100 times. The density is that of
        the first rows of each subsampled plate.

        Raises
        ------
        ModelCheckError
            When no finite position is found; the message names the site at fault.
        """
        check_count("num", num)
        return self._start.positions(num, generator, data)

    # -- observed distributions ---------------------------------------------------------------

    def likelihood_factors(
        self, z: Float[Tensor, " D"], data: Data, indices: Indices | None = None
    ) -> tuple[str, ...]:
        """Names of the factors in the likelihood, which are not among :meth:`outputs`."""
        arguments = self._arguments(data, indices)
        handler = OutputHandler(self.layout.split(z), arguments[2])
        with without_host_checks():
            self.run(handler, arguments)
        return tuple(handler.factors)

    def outputs(
        self,
        z: Float[Tensor, " D"] | Mapping[str, Tensor],
        data: Data,
        indices: Indices | None = None,
    ) -> dict[str, Output]:
        """Distributions of the observed sites at one flat vector z (D,), differentiable in z.

        ``z`` may also be the unconstrained values of the latent sites, to be differentiated in
        some of them. Under ``torch.func`` transforms return the tensors that are needed, not the
        outputs.
        """
        arguments = self._arguments(data, indices)
        sites = z if isinstance(z, Mapping) else self.layout.split(z)
        handler = OutputHandler(sites, arguments[2])
        with without_host_checks():
            self.run(handler, arguments)
        return handler.outputs
