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

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError, HeldParameterWarning
from ppl_ext.options import check_count, check_number
from pyro_ext.density.check import check_model
from pyro_ext.density.graph import OWN_ROWS, BatchedFunction, as_arguments
from pyro_ext.density.handlers import (
    SiteHandler,
    SubsampleControl,
    UnconstrainHandler,
    isolated_parameters,
    plate_shape_error,
    without_host_checks,
)
from pyro_ext.density.initialization import draw_positions
from pyro_ext.density.layout import Data, Layout
from pyro_ext.density.outputs import Output, OutputHandler

Indices = Mapping[str, Tensor]

#: Rows of a subsampled plate that a full-data sweep evaluates at once, unless told otherwise.
DEFAULT_DATA_CHUNK = 2048
#: Coordinates that are worked on at once where a vector is too long for the processor's cache.
CACHE_LENGTH = 2**16


def _differentiated(single: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    """Evaluate a function as if for its gradient, and drop that.

    Fused kernels (recurrent layers) have no batching rule; where gradients are followed torch
    takes their parts instead, which do.
    """

    def value(z: Tensor, arguments: Any) -> Any:
        return torch.func.vjp(lambda z: single(z, arguments), z)[0]

    return value


def _add_normal(score: Tensor, z: Tensor, where: slice, loc: Tensor, scale: Tensor) -> Tensor:
    """Add a Normal prior of the coordinates ``where`` to the score; return its log density (P,).

    In pieces that stay in the processor's cache, so that each entry is read and written once.

    Parameters
    ----------
    score : tensor (P, D)
        Changed in place.
    z : tensor (P, D)
    loc, scale : tensors (P,)
    """
    size = where.stop - where.start
    length = CACHE_LENGTH if z.device.type == "cpu" else size
    loc, precision = loc.unsqueeze(-1), scale.square().reciprocal().unsqueeze(-1)
    log_density = -size * (scale.log() + 0.5 * math.log(2.0 * math.pi))
    for start in range(where.start, where.stop, length):
        part = slice(start, min(start + length, where.stop))
        residual = loc - z[:, part]
        gradient = residual * precision
        score[:, part] += gradient
        log_density -= 0.5 * residual.mul_(gradient).sum(-1)
    return log_density


class Score(NamedTuple):
    """Gradient of the log density at particles, and the parts of the log density.

    ``score`` (P, D) belongs to log prior + log likelihood / temperature; ``log_prior`` and
    ``log_likelihood`` (P,) are not tempered.
    """

    score: Tensor
    log_prior: Tensor
    log_likelihood: Tensor


class ScoreParts(NamedTuple):
    """Gradients of the prior part and of the likelihood part, each (P, D), not tempered."""

    prior: Tensor
    likelihood: Tensor
    log_prior: Tensor
    log_likelihood: Tensor


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
        self.model = model
        #: Deterministic sites that the program declares to be its parameters: they belong to its
        #: draws, as those of a Stan program do, whose latent site is a vector without names.
        self.parameter_sites: tuple[str, ...] = tuple(getattr(model, "parameter_sites", ()))
        self.init_strategy = init_strategy
        self.likelihood_temperature = float(likelihood_temperature)
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        data = self.bind(*args, **dict(kwargs or {}))
        structure = check_model(
            model, data.args, data.kwargs, allow_local_latents=allow_local_latents
        )
        self.layout: Layout = structure.layout
        self.plates = structure.plates
        if data_chunk is not None and not self.plates:
            raise ArgumentError(
                f"data_chunk={data_chunk} has nothing to divide: the model has no subsampled plate "
                "whose rows it looks up. Write the data plate as `with pyro.plate(name, N, "
                "subsample_size=B) as rows:` and index the data by rows, or leave data_chunk out."
            )
        without = bool(self.parameter_sites) and not structure.has_likelihood
        if self.likelihood_temperature != 1.0 and without:
            raise ArgumentError(
                f"likelihood_temperature={likelihood_temperature} has nothing to divide: the model "
                "has no likelihood, that is neither observed sites nor factors inside a plate. The "
                "density of a Stan program is in one piece; temper it in the program."
            )
        self.batch_plates = structure.batch_plates
        self.local_sites = structure.local_sites
        self.observed_sites = structure.observed_sites
        self.device = structure.device
        self._parameters = structure.parameters
        if structure.parameter_names:
            warnings.warn(
                "Parameters without a prior are held at their present values: "
                f"{', '.join(structure.parameter_names)}. Give them priors (PyroSample, or "
                "pyro.nn.module.to_pyro_module_ and a prior for each parameter) to infer them.",
                HeldParameterWarning,
                stacklevel=2,
            )

        self._lifted = evaluation, particle_chunk
        self._value = self.lift(_differentiated(self._single_value))
        self._score = self.lift(self._single_score)
        self._score_parts = self.lift(self._single_score_parts)
        self._constrain = self.lift(_differentiated(self._single_constrain))
        self._unconstrain = BatchedFunction(
            _differentiated(self._single_unconstrain), "handlers", particle_chunk
        )

    def lift(self, single: Callable[..., Any], *, drawing: bool = False) -> BatchedFunction:
        """A function of one position and (args, kwargs, row indices), for many positions.

        It is evaluated as the target is, by a traced graph unless told otherwise; one particle
        after another where it is ``drawing`` random numbers.
        """
        evaluation, particle_chunk = self._lifted
        return BatchedFunction(single, "loop" if drawing else evaluation, particle_chunk)

    @property
    def dim(self) -> int:
        """Length D of the flat unconstrained vector."""
        return self.layout.dim

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
        return self._score.mode

    def retrace(self) -> None:
        """Trace the model again at the next evaluation (after closed-over tensors changed)."""
        for function in (self._value, self._score, self._score_parts, self._constrain):
            function.retrace()

    @contextmanager
    def writing_into(self, buffer: Tensor | None) -> Iterator[None]:
        """Let the first score in this context be written into ``buffer``, where that is possible.

        ``buffer`` is a score that nobody needs any more, or None.
        """
        self._score.memory.lend(buffer)
        try:
            yield
        finally:
            self._score.memory.lend(None)

    # -- one particle ------------------------------------------------------------------------

    def run(self, handler: Any, arguments: Any) -> dict[str, tuple[int, int]]:
        """Run the model once under ``handler``, with (args, kwargs, row indices).

        Returns the size of each subsampled plate, and the number of rows that it asks for.
        """
        args, kwargs, indices = arguments
        control = SubsampleControl(indices)
        with isolated_parameters(self._parameters), control, handler:
            try:
                self.model(*args, **kwargs)
            except ValueError as error:
                raise plate_shape_error(error) or error from error
        return control.plates

    def _single_value(self, z: Tensor, arguments: Any) -> tuple[Tensor, Tensor]:
        handler = SiteHandler(self.layout.split(z), arguments[2])
        self.run(handler, arguments)
        zero = z.new_zeros(())
        return handler.log_prior + zero, handler.log_likelihood + zero

    def _single_score(
        self, z: Tensor, arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Score and log density without the Normal priors of large sites, and those priors."""

        def tempered(z: Tensor) -> tuple[Tensor, Any]:
            handler = SiteHandler(self.layout.split(z), arguments[2], leave_normals=True)
            self.run(handler, arguments)
            zero = z.new_zeros(())
            parts = handler.log_prior + zero, handler.log_likelihood + zero
            return self._temper(*parts), (*parts, handler.normals)

        gradient, parts = torch.func.grad(tempered, has_aux=True)(z)
        return (gradient, *parts)

    def _particle_scores(
        self, z: Tensor, arguments: Any, in_dims: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score (P, D), log prior and log likelihood (P,) at particles."""
        score, log_prior, log_likelihood, normals = self._score(z, arguments, in_dims)
        if normals:
            # The gradient is a tensor of its own, except where vmap repeats one for all particles.
            score = score.contiguous()
        for name, (loc, scale) in normals.items():
            log_prior = log_prior + _add_normal(score, z, self.layout.slices[name], loc, scale)
        return score, log_prior, log_likelihood

    def _single_score_parts(
        self, z: Tensor, arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, pullback = torch.func.vjp(lambda z: self._single_value(z, arguments), z)[:2]
        log_prior, log_likelihood = values
        one, zero = torch.ones_like(log_prior), torch.zeros_like(log_prior)
        (prior,) = pullback((one, zero))
        (likelihood,) = pullback((zero, one))
        return prior, likelihood, log_prior, log_likelihood

    def _single_constrain(self, z: Tensor, arguments: Any) -> dict[str, Tensor]:
        handler = SiteHandler(self.layout.split(z), arguments[2])
        self.run(handler, arguments)
        values = {name: handler.values[name] for name in self.layout.names}
        return values | {name: handler.recorded[name] for name in self.parameter_sites}

    def _single_unconstrain(self, flat: Tensor, arguments: Any) -> Tensor:
        constrained, run_arguments = arguments
        handler = UnconstrainHandler(constrained.split(flat))
        self.run(handler, run_arguments)
        return self.layout.join(handler.positions)

    # -- arguments ---------------------------------------------------------------------------

    def bind(self, *args: Any, **kwargs: Any) -> Data:
        """Arguments of one call, checked against the model's signature.

        Raises
        ------
        ArgumentError
            The arguments do not fit the signature of the model.
        """
        function = self.model.forward if isinstance(self.model, torch.nn.Module) else self.model
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return Data(args, kwargs)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"The arguments do not fit the model: {error}. Expected {signature}, found "
                f"{len(args)} positional arguments and keywords {sorted(kwargs)}."
            ) from None
        return Data(args, kwargs)

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        """Plates that arguments hold a batch of: name to all rows, and those that are held."""
        origin = torch.zeros(self.dim, dtype=self.dtype, device=self.device)
        indices = self.first_rows()
        handler = SiteHandler(self.layout.split(origin), indices)
        with torch.no_grad(), without_host_checks():
            plates = self.run(handler, (data.args, data.kwargs, indices))
        return {name: sizes for name, sizes in plates.items() if name not in self.plates}

    def require_all_rows(self, data: Data, advice: str) -> None:
        """See that arguments hold every row of every plate whose rows the engine does not choose.

        ``advice`` says in the error what to do.

        Raises
        ------
        ArgumentError
            They hold a batch.
        """
        for name, (size, rows) in self.partial_plates(data).items():
            raise ArgumentError(
                f"Expected the full data: plate '{name}' has {size} rows, found arguments with "
                f"{rows}. {advice}"
            )

    def _arguments(self, data: Data, indices: Indices | None) -> Any:
        indices = dict(indices or {})
        if self.plates.keys() != indices.keys():
            expected, found = sorted(self.plates), sorted(indices)
            raise ValueError(
                f"Expected row indices for the subsampled plates {expected}, found {found}. "
                "Pass indices={plate: rows}, or use the full_* functions for all rows."
            )
        # With all rows in one set Pyro leaves the data in order, and so must the latents be.
        indices = {
            name: rows.sort().values if rows.shape[-1] == self.plates[name].size else rows
            for name, rows in indices.items()
        }
        return as_arguments(data.args, data.kwargs, indices)

    def _in_dims(self, z: Tensor, indices: Indices | None) -> Any:
        """Which arguments each particle has of its own: no rows, or all.

        Raises
        ------
        ValueError
            Some plates have rows for each particle and some for all, or not as many as particles.
        """
        shapes = {name: tuple(rows.shape) for name, rows in (indices or {}).items()}
        if all(len(shape) == 1 for shape in shapes.values()):
            return None
        if all(len(shape) == 2 and shape[0] == len(z) for shape in shapes.values()):
            return OWN_ROWS
        raise ValueError(
            "Expected row indices of shape (rows,) for every plate, or of shape (P, rows) for "
            f"every plate at P = {len(z)} particles, found {shapes}."
        )

    def _particles(self, z: Tensor) -> Tensor:
        if z.dim() != 2 or z.shape[1] != self.dim:
            raise ValueError(
                f"Expected particles of shape (P, {self.dim}), found {tuple(z.shape)}."
            )
        return z

    # -- one (mini)batch -----------------------------------------------------------------------

    def log_prior_and_likelihood(
        self, z: Tensor, data: Data, indices: Indices | None = None
    ) -> tuple[Tensor, Tensor]:
        """Prior part and likelihood part of the log density, each (P,), not tempered.

        Parameters
        ----------
        z : tensor (P, D)
        data : Data
            From :meth:`bind`.
        indices : mapping of str to int64 tensor, optional
            Rows of each subsampled plate; needed exactly when the model subsamples itself. Of
            shape (rows,), for all particles, or (P, rows), those of each.
        """
        z, in_dims = self._particles(z), self._in_dims(z, indices)
        return self._value(z, self._arguments(data, indices), in_dims)

    def log_density(self, z: Tensor, data: Data, indices: Indices | None = None) -> Tensor:
        """Log prior + log likelihood / temperature, (P,)."""
        return self._temper(*self.log_prior_and_likelihood(z, data, indices))

    def score(self, z: Tensor, data: Data, indices: Indices | None = None) -> Score:
        """Gradient of :meth:`log_density` for one batch of rows."""
        z, in_dims = self._particles(z), self._in_dims(z, indices)
        return Score(*self._particle_scores(z, self._arguments(data, indices), in_dims))

    def score_parts(self, z: Tensor, data: Data, indices: Indices | None = None) -> ScoreParts:
        """Gradients of the prior part and of the likelihood part, for one batch of rows."""
        z, in_dims = self._particles(z), self._in_dims(z, indices)
        return ScoreParts(*self._score_parts(z, self._arguments(data, indices), in_dims))

    # -- all rows ------------------------------------------------------------------------------

    def sweep(self, chunk: int | None = None) -> list[tuple[float, dict[str, Tensor]]]:
        """Row indices that cover the full data once, with weights that sum to one.

        A chunk of n_c rows is evaluated with the plate's scale N/n_c and weighted by n_c/N,
        which is exact for sites inside the plate and outside it. Several plates are covered by
        the product of their chunks. ``chunk`` bounds the number of rows evaluated at once.
        """
        if not self.plates:
            return [(1.0, {})]
        chunk = chunk or self.data_chunk or DEFAULT_DATA_CHUNK
        # Nested plates multiply, so that each gets its share of the rows.
        share = max(1, round(chunk ** (1.0 / len(self.plates))))
        total = math.prod(plate.size for plate in self.plates.values())
        pieces = []
        for plate in self.plates.values():
            rows = torch.arange(plate.size, device=self.device)
            length = plate.size if total <= chunk else share
            pieces.append([(plate.name, plate.size, part) for part in rows.split(length)])
        batches = []
        for combination in itertools.product(*pieces):
            weight = 1.0
            for _, size, part in combination:
                weight *= len(part) / size
            batches.append((weight, {name: part for name, _, part in combination}))
        return batches

    def _sweep_sum(self, function: Callable[..., Any], z: Tensor, data: Data) -> list[Tensor]:
        z = self._particles(z)
        total: list[Tensor] | None = None
        for weight, indices in self.sweep():
            parts = function(z, as_arguments(data.args, data.kwargs, indices))
            if weight == 1.0:
                return list(parts)
            if total is None:
                total = [weight * part for part in parts]
            else:
                total = [
                    so_far.add(part, alpha=weight)
                    for so_far, part in zip(total, parts, strict=True)
                ]
        assert total is not None
        return total

    def full_log_prior_and_likelihood(self, z: Tensor, data: Data) -> tuple[Tensor, Tensor]:
        """As :meth:`log_prior_and_likelihood`, exactly, over all rows."""
        log_prior, log_likelihood = self._sweep_sum(self._value, z, data)
        return log_prior, log_likelihood

    def full_score(self, z: Tensor, data: Data) -> Score:
        """As :meth:`score`, exactly, over all rows (chunked, ragged last chunk included)."""
        score, log_prior, log_likelihood = self._sweep_sum(self._particle_scores, z, data)
        return Score(score, log_prior, log_likelihood)

    def full_score_parts(self, z: Tensor, data: Data) -> ScoreParts:
        """As :meth:`score_parts`, exactly, over all rows."""
        return ScoreParts(*self._sweep_sum(self._score_parts, z, data))

    def _temper(self, log_prior: Tensor, log_likelihood: Tensor) -> Tensor:
        if self.likelihood_temperature == 1.0:
            return log_prior + log_likelihood
        return log_prior + log_likelihood / self.likelihood_temperature

    # -- values --------------------------------------------------------------------------------

    def all_rows(self) -> dict[str, Tensor]:
        """Row indices of the full data for every plate that the model subsamples itself."""
        return {
            plate.name: torch.arange(plate.size, device=self.device)
            for plate in self.plates.values()
        }

    def first_rows(self) -> dict[str, Tensor]:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return {
            plate.name: torch.arange(plate.subsample_size, device=self.device)
            for plate in self.plates.values()
        }

    def rows_for_values(self) -> dict[str, Tensor]:
        """Rows needed to see every latent site: all when some are local, else one minibatch."""
        return self.all_rows() if self.local_sites else self.first_rows()

    def constrain(self, z: Tensor, data: Data) -> dict[str, Tensor]:
        """Constrained values of the latent sites, each (P, *site shape).

        Supports are those that the model has at these values, so that sites whose support
        depends on other sites come out right. Local latents have their full length. Programs whose
        parameters are deterministic sites (``parameter_sites``) have these as well.
        """
        arguments = as_arguments(data.args, data.kwargs, self.rows_for_values())
        return self._constrain(self._particles(z), arguments)

    def unconstrain(self, values: Mapping[str, Tensor], data: Data) -> Tensor:
        """Inverse of :meth:`constrain`: sites (P, *site shape) to particles (P, D)."""
        missing = [name for name in self.layout.names if name not in values]
        if missing:
            raise ValueError(f"Expected values for every latent site, found none for {missing}.")
        sites = {
            name: torch.as_tensor(values[name], dtype=self.dtype, device=self.device)
            for name in self.layout.names
        }
        shapes = {name: tuple(value.shape[1:]) for name, value in sites.items()}
        constrained = Layout(self.layout.names, shapes)
        arguments = as_arguments(data.args, data.kwargs, self.rows_for_values())
        return self._unconstrain(constrained.join(sites), (constrained, arguments))

    def initial_positions(self, num: int, generator: torch.Generator, data: Data) -> Tensor:
        """Draw ``num`` starting positions (num, D) with a finite log density and score.

        Raises
        ------
        ModelCheckError
            None was found in 100 rounds; the message names the sites at fault.
        """
        return draw_positions(self, num, generator, data)

    def evaluate(
        self, z: Tensor, data: Data, indices: Indices | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log prior and log likelihood, two scalars, at one flat vector z (D,).

        Plain code without ``vmap``, for callers that build their own derivatives by
        ``torch.func``.
        """
        arguments = self._arguments(data, indices)
        with without_host_checks():
            return self._single_value(z, arguments)

    def likelihood_factors(
        self, z: Tensor, data: Data, indices: Indices | None = None
    ) -> tuple[str, ...]:
        """Names of the factors in the likelihood, which are not among :meth:`outputs`."""
        arguments = self._arguments(data, indices)
        handler = OutputHandler(self.layout.split(z), arguments[2])
        with without_host_checks():
            self.run(handler, arguments)
        return tuple(handler.factors)

    def outputs(
        self, z: Tensor | Mapping[str, Tensor], data: Data, indices: Indices | None = None
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
