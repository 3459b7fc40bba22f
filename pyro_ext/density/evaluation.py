"""Evaluating the density: value, score and score by parts, at one position and at many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.target.bound_model import check_own_rows
from ppl_ext.target.scores import Score, ScoreParts, tempered
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.handlers import LARGE_SITE, SiteHandler, evaluating
from pyro_ext.density.layout import Data, Indices
from pyro_ext.graphs import MANY_SITES, OWN_ROWS, BatchedFunction, Shortened, as_arguments, lift
from pyro_ext.pieces import of_vector, side_by_side


class Evaluation:
    """The density as functions of positions, arguments and rows.

    Parameters
    ----------
    bound : BoundModel
    temperature : float
        The log likelihood is divided by it.
    particle_chunk : int or None
        How many positions are evaluated at once.
    mode : {"graph", "inductor", "handlers", "loop"}
        See :class:`~pyro_ext.graphs.BatchedFunction`.
    """

    def __init__(
        self, bound: BoundModel, temperature: float, particle_chunk: int | None, mode: str
    ) -> None:
        self.bound = bound
        self.temperature = temperature
        #: How often; whoever has lifted functions of its own sees that they are to be traced again.
        self.retraced = 0
        self._lifted = mode, particle_chunk
        # Only then is there a prior that is worth leaving out; small programs need no look at it.
        self._large = max(bound.layout.sizes.values()) >= LARGE_SITE
        # Found once for all that is asked of it.
        self._value = self.shortened(self._run)
        self.values = self.lift(differentiated(self.value), self._value)
        self._scores = self.lift(self._score, self._value)
        self._parts = self.lift(self._score_parts, self._value)
        self.functions: dict[str, Callable[..., Any]] = {
            "value": self.values,
            "score": self.scores,
            "parts": self.parts,
        }

    def lift(self, single: Callable[..., Any], inner: Any = None) -> BatchedFunction:
        """A function of one position and (args, kwargs, row indices), for many positions.

        It is evaluated as the target is, by a traced graph unless told otherwise, and draws no
        random numbers. ``inner`` is a part of it, of :meth:`shortened`.
        """
        mode, particle_chunk = self._lifted
        inner = inner if isinstance(inner, Shortened) else None
        return lift(single, mode, particle_chunk, inner, evaluating)

    def shortened(self, function: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
        """The same function of one position, in short form where the program has many steps.

        That costs a run of the model, so programs of few sites are left as they are.
        """
        bound = self.bound
        sites = len(bound.layout.names) + len(bound.observed_sites) + len(bound.enumerated)
        return Shortened(function) if sites >= MANY_SITES else function

    @property
    def mode(self) -> str:
        """How scores are evaluated now, after any fallback."""
        return self._scores.mode

    def retrace(self) -> None:
        """Trace the model again at the next evaluation."""
        self.retraced += 1
        for function in (self.values, self._scores, self._parts):
            function.retrace()

    @contextmanager
    def writing_into(self, buffer: Float[Tensor, "P D"] | None) -> Iterator[None]:
        """Let the first score in this context be written into ``buffer``, where possible."""
        self._scores.memory.lend(buffer)
        try:
            yield
        finally:
            self._scores.memory.lend(None)

    def value(
        self, z: Float[Tensor, " D"], arguments: Any
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Log prior and log likelihood at one position."""
        return self._value(z, arguments)

    def _run(self, z: Tensor, arguments: Any) -> tuple[Tensor, Tensor]:
        return self._parts_and_normals(z, arguments, leave_normals=False)[0]

    def _parts_and_normals(
        self, z: Tensor, arguments: Any, *, leave_normals: bool
    ) -> tuple[tuple[Tensor, Tensor], dict[str, tuple[Tensor, Tensor]]]:
        handler = SiteHandler(self.bound.layout.split(z), arguments[2], leave_normals)
        self.bound.run(handler, arguments)
        zero = z.new_zeros(())
        # A sum without any terms is still a number of Python, and a graph returns tensors.
        return (handler.log_prior + zero, handler.log_likelihood + zero), handler.normals

    def _score(
        self, z: Tensor, arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Score and log density without the Normal priors of large sites, and those priors."""

        def log_density(z: Tensor) -> tuple[Tensor, Any]:
            if not self._large:
                parts, normals = self.value(z, arguments), dict[str, tuple[Tensor, Tensor]]()
            else:
                parts, normals = self._parts_and_normals(z, arguments, leave_normals=True)
            return tempered(*parts, self.temperature), (*parts, normals)

        gradient, parts = torch.func.grad(log_density, has_aux=True)(z)
        return (gradient, *parts)

    def scores(self, z: Float[Tensor, "P D"], arguments: Any, in_dims: Any = None) -> Score[Tensor]:
        """Tempered scores at particles."""
        score, log_prior, log_likelihood, normals = self._scores(z, arguments, in_dims)
        if normals:
            # The gradient is a tensor of its own, except where vmap repeats one for all particles.
            score = score.contiguous()
        for name, (loc, scale) in normals.items():
            where = self.bound.layout.slices[name]
            log_prior = log_prior + add_normal(score, z, where, loc, scale)
        return Score(score, log_prior, log_likelihood)

    def _score_parts(self, z: Tensor, arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, pullback = torch.func.vjp(lambda z: self.value(z, arguments), z)[:2]
        log_prior, log_likelihood = values
        one, zero = torch.ones_like(log_prior), torch.zeros_like(log_prior)
        # One way forwards, and backwards one for each value.
        (prior,) = pullback((one, zero))
        (likelihood,) = pullback((zero, one))
        return prior, likelihood, log_prior, log_likelihood

    def parts(
        self, z: Float[Tensor, "P D"], arguments: Any, in_dims: Any = None
    ) -> ScoreParts[Tensor]:
        """Gradients of prior and likelihood apart, at particles."""
        return ScoreParts(*self._parts(z, arguments, in_dims))

    def batch(self, what: str, z: Float[Tensor, "P D"], data: Data, indices: Indices | None) -> Any:
        """One of ``functions``, of one batch of rows.

        Raises
        ------
        ArgumentError
            Some plates have rows for each particle and some for all, or not as many as particles.
        """
        z, indices = self.bound.check_positions(z), self.bound.check_indices(indices)
        in_dims: Any = None
        if not all(rows.dim() == 1 for rows in indices.values()):
            check_own_rows(indices, len(z))
            in_dims = OWN_ROWS
        return self.functions[what](z, as_arguments(data.args, data.kwargs, indices), in_dims)


def differentiated(single: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    """Evaluate a function as if for its gradient, and drop that.

    Fused kernels (recurrent layers) have no batching rule; where gradients are followed torch
    takes their parts instead, which do.
    """

    def value(z: Tensor, arguments: Any) -> Any:
        return torch.func.vjp(lambda z: single(z, arguments), z)[0]

    return value


def add_normal(
    score: Float[Tensor, "P D"],
    z: Float[Tensor, "P D"],
    where: slice,
    loc: Float[Tensor, "P ..."],
    scale: Float[Tensor, " P"],
) -> Float[Tensor, " P"]:
    """Add a Normal prior of the coordinates ``where`` to the score; return its log density (P,).

    In pieces that stay in the processor's cache, so that each entry is read and written once.

    Parameters
    ----------
    score : tensor (P, D)
        Changed in place.
    z : tensor (P, D)
    loc : tensor (P,) or (P, ...)
        One for all coordinates, or as many as these.
    scale : tensor (P,)
    """
    size, count = where.stop - where.start, len(z)
    loc = loc.reshape(count, -1).expand(count, size)
    precision = scale.square().reciprocal().unsqueeze(-1)

    def worker() -> Callable[[slice], Tensor]:
        memory = z.new_empty(0), z.new_empty(0)

        def add(piece: slice) -> Tensor:
            part = slice(where.start + piece.start, where.start + piece.stop)
            residual, gradient = (each.resize_(z[:, part].shape) for each in memory)
            torch.sub(loc[:, piece], z[:, part], out=residual)
            torch.mul(residual, precision, out=gradient)
            score[:, part] += gradient
            # ((m - x) / s)^2, of which the log density has half.
            return residual.mul_(gradient).sum(-1)

        return add

    squares = side_by_side(worker, of_vector(z, size))
    # log N(x; m, s) = -log s - log(2 pi) / 2 - ((x - m) / s)^2 / 2, summed over the entries.
    log_density = -size * (scale.log() + 0.5 * math.log(2.0 * math.pi))
    return log_density - 0.5 * torch.stack(squares).sum(0)
