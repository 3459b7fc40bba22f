"""The target of every engine: a Pyro model and its arguments as a flat log density.

This is the only room that runs the model. Everything else sees particles ``z`` of shape
(P, D) in unconstrained space and asks for log densities, scores (gradients with respect to
``z``) and constrained values.

The log density is split in two. The *prior part* holds every latent site with log|det J| of
its transform, and ``factor`` statements outside every plate. The *likelihood part* holds
observed sites, and factors inside a plate. Scales (of plates, nested plates and
``poutine.scale``) and masks apply to each site as Pyro applies them to its log density, and to its
log|det J| those of plates alone. With rows b of a plate of N rows drawn, the plate's sites are
scaled by N/|b|, so that a minibatch log density is an unbiased estimate of the full one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ppl_ext.arguments import check_callable, named_if_foreign
from ppl_ext.batches.batch import Batch
from ppl_ext.batches.stream import unscaled_error
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.options import check_count
from ppl_ext.target.bound_model import as_found
from ppl_ext.target.discrete import check_curvature
from ppl_ext.target.fingerprint import Fingerprint, digest_of
from ppl_ext.target.log_density import LogDensityShell, warn_of_held_parameters
from ppl_ext.target.scores import tempered
from pyro_ext.density.arguments import as_data, partial_plates
from pyro_ext.density.batches import batches_of
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.check import check_enumeration, check_model
from pyro_ext.density.evaluation import Evaluation, differentiated
from pyro_ext.density.fingerprint import as_numpy, fingerprint, repeatable_fingerprint
from pyro_ext.density.handlers import evaluating, without_host_checks
from pyro_ext.density.layout import Data, Indices, Layout
from pyro_ext.density.outputs import Output, OutputHandler
from pyro_ext.density.spaces import check_values, constrain, unconstrain
from pyro_ext.density.start import StartingPositions
from pyro_ext.density.sweep import sum_over_rows
from pyro_ext.graphs import MAX_GRAPHS, BatchedFunction, Inputs, as_arguments, lift
from pyro_ext.sharding import Sharding

_ADVICE = "Pass tensors, as torch.as_tensor(y) gives, or torch.as_tensor(y.to_numpy()) of a column."


class LogDensity(LogDensityShell[Tensor, Data]):
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
        See :class:`~pyro_ext.graphs.BatchedFunction`. With "graph" and "inductor" tensors
        that the model closes over are constants: pass data as arguments, or call
        :meth:`retrace` after changing them.
    allow_local_latents : bool
        Whether latents inside a subsampled plate are accepted.
    held : optional
        State of the parameter store to hold parameters at. Default: the store's present one.
    sharding : Sharding, optional
        How positions and rows are split over processes, which must all ask for the same.
    loaded : sequence of str, optional
        Where a batch of a loader comes as arguments: the names of those that it gives by keyword.
        Its rows are split, and so must all positional arguments have rows.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted; see :mod:`pyro_ext.density.check`.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> target = px.LogDensity(model, (y,))
    >>> z = torch.tensor([[1.0], [2.0]])  # two positions (P, D) in unconstrained space
    >>> found = target.full_score(z, target.bind(y))
    >>> print([f"{value:.1f}" for value in found.log_density(1.0)])
    ['-9.9', '-7.9']
    >>> print(found.score[0].round())
    tensor([4.])
    """

    bound: BoundModel
    #: Where it sees the positions of one process: how they are split, and how many there are.
    share: tuple[Sharding, int] | None = None
    _data_plate = "with pyro.plate(name, N, subsample_size=B) as rows:"

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
        held: Any = None,
        sharding: Sharding | None = None,
        loaded: Sequence[str] | None = None,
    ) -> None:
        self.sharding, self.loaded = sharding, loaded
        self._set_options(init_strategy, likelihood_temperature, particle_chunk, data_chunk)
        floats = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        if dtype is not None and not floats:
            raise ArgumentError(
                "Expected dtype to be a torch.dtype of real numbers, such as torch.float64, found "
                f"{dtype!r}."
            )
        check_callable(model, "Pyro")
        data = as_data(model, args, dict(kwargs or {}), dtype or torch.get_default_dtype())
        with named_if_foreign(model, args, kwargs or {}, (Tensor,), _ADVICE):
            structure = check_model(
                model,
                data.args,
                data.kwargs,
                allow_local_latents=allow_local_latents,
                parameters=held,
                dtype=dtype,
            )
        self.bound = bound = BoundModel(
            model=model,
            held=structure.parameters,
            dtype=torch.get_default_dtype() if dtype is None else dtype,
            device=structure.device,
            **as_found(structure),
        )
        # Before anything is evaluated: what does not sum out fails later without naming the site.
        check_enumeration(bound, data)
        self._set_model(bound)
        self._check_options(structure.has_likelihood)
        self.sees_data = structure.sees_data
        if self._splits_batches:
            # A part of a batch has to be scaled up to all rows.
            if not partial_plates(bound, self._own_part(data)[1]):
                raise unscaled_error("a batch whose rows are split over processes")
        elif sharding is not None and sharding.row_parts > 1 and not self.plates:
            raise ArgumentError(
                f"Expected a model whose rows can be split over '{sharding.rows}', found no plate "
                "that it subsamples itself and whose rows it looks up. Write the data plate as "
                f"`{self._data_plate}` with B < N, and index the data by rows; estimator=Full() "
                "takes all rows in every step. Give batches by run(..., batches=loader). Or leave "
                "rows out of the Sharding."
            )
        self.layout: Layout = bound.layout
        self.dtype = bound.dtype
        self.device = bound.device
        # The last arguments, and the same as functions of one position take them.
        self._whole: tuple[Data, Any] | None = None
        inputs = Inputs((data.args, data.kwargs, {}))
        self._known: dict[Any, tuple[Inputs, Fingerprint | None]] = {
            inputs.key: (inputs, repeatable_fingerprint(bound, data))
        }
        parameters = structure.parameters["params"]
        #: Parameters without a prior.
        self.held = tuple(structure.parameter_names)
        warn_of_held_parameters(
            {name: parameters[name].numel() for name in structure.parameter_names},
            "present",
            "priors (PyroSample, or poutine.lift) to infer them",
        )
        self._evaluation = Evaluation(
            bound, self.likelihood_temperature, particle_chunk, evaluation
        )
        self._start = StartingPositions(self._evaluation, init_strategy)
        constrained = self._evaluation.shortened(partial(constrain, bound))
        self._check_differentiable(data)
        self._check_rows_apart(data)
        self._constrain = self._evaluation.lift(differentiated(constrained), constrained)
        self._unconstrain = lift(
            differentiated(partial(unconstrain, bound)),
            "handlers",
            particle_chunk,
            around=evaluating,
        )

    def lift(self, single: Callable[..., Any]) -> BatchedFunction:
        """A function of one position and (args, kwargs, row indices), for many positions.

        It is evaluated as the target is, by a traced graph unless told otherwise, and draws no
        random numbers.
        """
        return self._evaluation.lift(single)

    @property
    def evaluation(self) -> str:
        """How scores are evaluated now, after any fallback."""
        return self._evaluation.mode

    def retrace(self) -> None:
        """Trace the model again at the next evaluation (after closed-over tensors changed)."""
        self._evaluation.retrace()
        self._constrain.retrace()

    @property
    def retraced(self) -> int:
        """How often :meth:`retrace` was called."""
        return self._evaluation.retraced

    def writing_into(self, buffer: Float[Tensor, "P D"] | None) -> AbstractContextManager[None]:
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
        return as_data(self.model, args, kwargs, self.bound.dtype)

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        return partial_plates(self.bound, data)

    def follows(self, data: Data, look: bool = True) -> bool:
        inputs = Inputs((data.args, data.kwargs, {}))
        known = self._known.get(inputs.key)
        if known is None:
            structure = check_model(
                self.model, data.args, data.kwargs, parameters=self.bound.held, dtype=self.dtype
            )
            if not self.bound.has_structure(structure):
                return False
            check_enumeration(self.bound, data)
            # As many forms as there are graphs; the oldest goes, since dictionaries keep their
            # order.
            if len(self._known) == MAX_GRAPHS:
                del self._known[next(iter(self._known))]
            self._known[inputs.key] = inputs, repeatable_fingerprint(self.bound, data)
            return True
        if look or inputs.may_change:
            # None marks a model whose runs differ in something that no site shows: there is nothing
            # to compare it by.
            return known[1] is None or known[1] == fingerprint(self.bound, data)
        return True

    def inputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs | None:
        """What tells whether later arguments are these again, by ``is_of``; None where none can."""
        inputs = Inputs((args, dict(kwargs), {}))
        # Those of inference mode are evaluated as copies, and do not count what is written to them.
        lost = any(each.is_inference() for each in inputs.tensors)
        return None if lost or not inputs.is_flat else inputs

    def constants(self, data: Data) -> str:
        known = self._known.get(Inputs((data.args, data.kwargs, {})).key)
        return known[1].constants if known is not None and known[1] is not None else ""

    def identity(self, data: Data) -> str:
        """Digest of what the model computes of arguments of this form, and closes over."""
        known = self._known.get(Inputs((data.args, data.kwargs, {})).key)
        return digest_of([] if known is None else [str(known[1])], as_numpy)

    # -- values and scores --------------------------------------------------------------------

    def evaluate(
        self, z: Float[Tensor, " D"], data: Data, indices: Indices | None = None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        with without_host_checks():
            return self._evaluation.value(z, self._arguments(data, indices))

    def _check_differentiable(self, data: Data) -> None:
        """See that the log density has a gradient.

        Raises
        ------
        ModelCheckError
            The model computes it where torch records nothing.
        """
        # What is switched off around the call is no fault of the model.
        with torch.inference_mode(False), torch.enable_grad():
            z = self.placed(self._near_zero())
            try:
                parts = self.evaluate(z.requires_grad_(), data, self.bound.first_rows())
            except Exception:  # noqa: BLE001 - the check of the model tells of what fails.
                return
            if not any(each.requires_grad for each in parts):
                raise ModelCheckError(
                    "Expected a log density with a gradient, found that torch records none of it. "
                    "Take torch.no_grad or torch.inference_mode off the model, and detach() off "
                    "what it computes of latent sites."
                )

    @property
    def epsilon(self) -> float:
        return torch.finfo(self.dtype).eps

    def placed(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)

    def _likelihoods(
        self, z: Float[np.ndarray, "K D"], rows: Mapping[str, np.ndarray], *data: Data
    ) -> Float[np.ndarray, " values"]:
        positions = self.placed(z)
        numbers = {name: torch.as_tensor(each, device=self.device) for name, each in rows.items()}
        found = np.full((len(data), len(positions)), np.nan)
        with torch.no_grad(), suppress(LinAlgError):
            for n, k in np.ndindex(found.shape):
                own = {name: rows[k] for name, rows in numbers.items()}
                found[n, k] = float(self.evaluate(positions[k], data[n], own)[1])
        return found.ravel()

    def _arguments(self, data: Data, indices: Indices | None) -> Any:
        return as_arguments(data.args, data.kwargs, self.bound.check_indices(indices))

    def _batch(self, what: str, z: Tensor, data: Data, indices: Any) -> Any:
        if what == "log_density":
            log_prior, log_likelihood = self._batch("value", z, data, indices)
            return tempered(log_prior, log_likelihood, self.likelihood_temperature)
        if self.sharding is None:
            return self._evaluation.batch(what, z, data, indices)
        if self._splits_batches:
            share, part = self._own_part(data)
            return self._sharded(what, z, [(share, part, {})], True)
        whole = self.bound.check_indices(indices)
        # Rows of each position go with it.
        own = {
            name: self.sharding.own(rows) if rows.dim() == 2 else rows
            for name, rows in whole.items()
        }
        chunks, split = self.sharding.own_rows(own)
        return self._sharded(what, z, [(weight, data, rows) for weight, rows in chunks], split)

    def _full(self, what: str, z: Tensor, data: Data) -> Any:
        if what == "log_density":
            log_prior, log_likelihood = self._full("value", z, data)
            return tempered(log_prior, log_likelihood, self.likelihood_temperature)
        if self.sharding is not None:
            if self.passes is not None:
                batches = batches_of(self.passes, self.bound, data, self.sharding)
                return self._sharded(what, z, batches, True)
            if self._splits_batches:
                return self._batch(what, z, data, None)
            ranges, split = self.sharding.own_ranges(self.plates, self.data_chunk)
            chunks = [
                (weight, data, {name: self.bound.row_numbers(rows) for name, rows in each.items()})
                for weight, each in ranges
            ]
            return self._sharded(what, z, chunks, split)
        z, function = self.bound.check_positions(z), self._evaluation.functions[what]
        if self.passes is None and not self.plates:
            if self._whole is None or self._whole[0] is not data:
                self._whole = data, as_arguments(data.args, data.kwargs, {})
            return function(z, self._whole[1])
        parts: Iterable[tuple[float, Data, Indices]] = (
            ((weight, data, rows) for weight, rows in self.sweep())
            if self.passes is None
            else batches_of(self.passes, self.bound, data)
        )
        return sum_over_rows(
            parts, lambda data, rows: function(z, as_arguments(data.args, data.kwargs, rows))
        )

    def _sharded(
        self,
        what: str,
        z: Tensor,
        chunks: Iterable[tuple[float, Data, Indices]],
        split: bool,
    ) -> list[Tensor]:
        """What is wanted at all positions, from those and the rows of each process."""
        own = self.sharding.own(self.bound.check_positions(z))
        found = sum_over_rows(
            chunks, lambda data, rows: self._evaluation.batch(what, own, data, rows)
        )
        if split:
            found = self.sharding.summed(found)
        return self.sharding.gathered_tree(found, len(z))

    @property
    def _splits_batches(self) -> bool:
        """Whether the rows of a batch that comes as arguments are split over processes."""
        parts = 1 if self.sharding is None else self.sharding.row_parts
        return parts > 1 and self.loaded is not None and not self.plates

    def _own_part(self, data: Data) -> tuple[float, Data]:
        """This process's rows of a batch, with their share."""
        named = {name: data.kwargs[name] for name in self.loaded or () if name in data.kwargs}
        share, own = self.sharding.own_batch(Batch(data.args, named))
        return share, Data(own.args, {**data.kwargs, **own.kwargs})

    def with_sharding(self, sharding: Sharding | None) -> LogDensity:
        """The same target with its positions and rows split so."""
        other = copy.copy(self)
        other.sharding = sharding
        return other

    def of_own_positions(self, number: int) -> LogDensity:
        """The same target for the positions of one process, of so many in all."""
        other = copy.copy(self)
        other.sharding, other.share = self.sharding.of_rows_alone(), (self.sharding, number)
        return other

    def noise_like(
        self, positions: Float[Tensor, "P D"], generator: torch.Generator
    ) -> Float[Tensor, "P D"]:
        """Standard Normal noise for positions, the same however they are split."""
        number = len(positions) if self.share is None else self.share[1]
        # Drawn for the positions of all processes, of which each keeps its own: so a run gives the
        # same numbers however many processes share it.
        shape = (number, *positions.shape[1:])
        noise = torch.randn(
            shape, generator=generator, dtype=positions.dtype, device=generator.device
        )
        if self.share is not None:
            noise = self.share[0].own(noise)
        return noise.to(positions.device)

    # -- spaces -------------------------------------------------------------------------------

    def constrain(self, z: Float[Tensor, "P D"], data: Data) -> dict[str, Tensor]:
        arguments = as_arguments(data.args, data.kwargs, self.bound.rows_for_values())
        return self._constrain(self.bound.check_positions(z), arguments)

    def value_shapes(self, data: Data) -> dict[str, tuple[int, ...]]:
        zeros = torch.zeros(1, self.dim, dtype=self.dtype, device=self.device)
        found = self.constrain(zeros, data)
        return {name: tuple(found[name].shape[1:]) for name in self.layout.names}

    def unconstrain(self, values: Mapping[str, Tensor], data: Data) -> Float[Tensor, "P D"]:
        layout, flat = check_values(self.bound, values)
        arguments = as_arguments(data.args, data.kwargs, self.bound.rows_for_values())
        return self._unconstrain(flat, (layout, arguments))

    # -- starting points ----------------------------------------------------------------------

    def initial_positions(
        self, num: int, generator: torch.Generator, data: Data
    ) -> Float[Tensor, "P D"]:
        """Starting positions by the init strategy, with finite density and score.

        They are draws of the target's start where it has one. Positions that are not finite are
        drawn again, up to 100 times. The density is that of the first rows of each subsampled
        plate.

        Raises
        ------
        ModelCheckError
            When no finite position is found; the message names the site at fault.
        """
        check_count("num", num)
        if self.start is not None:
            found = self.start.positions(num, int(torch.randint(2**62, (), generator=generator)))
            return self.placed(found)
        return self._start.positions(num, generator, data)

    def prior_positions(
        self, num: int, generator: torch.Generator, data: Data
    ) -> Float[Tensor, "P D"]:
        """Positions (P, D) of draws of the prior, by a forward run of the model for each.

        Factors have no part in them. Positions may lie where density or score is not finite.

        Raises
        ------
        NotImplementedError
            A latent site has a distribution without draws, as an improper one.
        """
        check_count("num", num)
        return self._start.from_prior(num, generator, data)

    # -- observed distributions ---------------------------------------------------------------

    def likelihood_factors(
        self, z: Float[Tensor, " D"], data: Data, indices: Indices | None = None
    ) -> tuple[str, ...]:
        return tuple(self._met(z, data, indices).factors)

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
        return self._met(z, data, indices).outputs

    def _met(
        self, z: Tensor | Mapping[str, Tensor], data: Data, indices: Indices | None
    ) -> OutputHandler:
        """What is observed in a run of the model at one position, or at values by site."""
        check_curvature(self.bound.enumerated)
        arguments = self._arguments(data, indices)
        sites = z if isinstance(z, Mapping) else self.layout.split(z)
        handler = OutputHandler(sites, arguments[2])
        with without_host_checks():
            self.run(handler, arguments)
        return handler
