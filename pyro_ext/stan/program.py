"""A Stan program as a Pyro program.

The program has one latent site, Stan's unconstrained vector, with a flat prior, and one factor,
Stan's log density, whose gradient is Stan's own. The density and the parameters are operations
of torch, so that they can be vectorized, differentiated and traced to a graph as any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyro
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_ext.stan.density import StanDensity
from ppl_ext.stan.program import NO_THIRD, StanProgramShell

# A graph holds numbers and tensors only, so that a program goes by a number in it.
_programs: WeakValueDictionary[int, StanDensity] = WeakValueDictionary()
_numbers = itertools.count()


class StanProgram(StanProgramShell[Tensor]):
    host, arrays = pyro, torch

    def __init__(self, density: StanDensity) -> None:
        super().__init__(density)
        self._number = next(_numbers)
        _programs[self._number] = density

    def _record(self, name: str, value: Tensor) -> Any:
        return pyro.deterministic(name, value, event_dim=len(self.density.shapes[name]))

    def log_density(self, z: Float[Tensor, "*P D"]) -> Float[Tensor, "*P"]:
        log_density, _ = _LogDensity.apply(z, self._number)
        return log_density

    def _constrained(self, z: Tensor) -> Tensor:
        return _Parameters.apply(z, self._number, self.density.num_constrained)

    def unconstrain(self, values: Mapping[str, ArrayLike]) -> Float[Tensor, " D"]:
        """Position (D,) of values of the program's parameters, in torch's default type."""
        arrays = {
            name: value.detach().cpu().numpy() if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        return torch.as_tensor(self.density.unconstrain(arrays), dtype=torch.get_default_dtype())


model = StanProgram.model


# -- operations of torch -----------------------------------------------------------------------
#
# An operation is what a traced graph holds; the function around it says how it is vectorized and
# differentiated, which torch.func asks of functions and not of operations.


def _array(z: Tensor) -> np.ndarray[Any, Any]:
    # Stan computes in double precision, on the processor.
    return z.detach().cpu().to(torch.float64).numpy()


@torch.library.custom_op("pyro_ext::stan_log_density", mutates_args=())
def _log_density(z: Tensor, number: int) -> tuple[Tensor, Tensor]:
    values, gradients = _programs[number].value_and_gradient(_array(z))
    return torch.as_tensor(values).to(z), torch.as_tensor(gradients).to(z)


@_log_density.register_fake
def _(z: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape[:-1]), z.new_empty(z.shape)


@torch.library.custom_op("pyro_ext::stan_parameters", mutates_args=())
def _parameters(z: Tensor, number: int, count: int) -> Tensor:
    return torch.as_tensor(_programs[number].constrain(_array(z))).to(z)


@_parameters.register_fake
def _(z: Tensor, number: int, count: int) -> Tensor:
    return z.new_empty((*z.shape[:-1], count))


@torch.library.custom_op("pyro_ext::stan_hessian_product", mutates_args=())
def _hessian_product(z: Tensor, vector: Tensor, number: int) -> Tensor:
    return torch.as_tensor(_programs[number].hessian_product(_array(z), _array(vector))).to(z)


@_hessian_product.register_fake
def _(z: Tensor, vector: Tensor, number: int) -> Tensor:
    return z.new_empty(z.shape)


def _lead(value: Tensor, dim: int | None, size: int) -> Tensor:
    """A value with vmap's axis first, which it may not have."""
    return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)


class _LogDensity(torch.autograd.Function):
    """Log density and gradient, each of them differentiable once."""

    @staticmethod
    def forward(z: Tensor, number: int) -> tuple[Tensor, Tensor]:
        return _log_density(z, number)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        # None, not zeros, for an output that nothing depends on: second derivatives are dear.
        ctx.set_materialize_grads(False)
        ctx.number = inputs[1]
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(
        ctx: Any, log_density: Tensor | None, gradient: Tensor | None
    ) -> tuple[Tensor | None, None]:
        z, own = ctx.saved_tensors
        first = None if log_density is None else log_density.unsqueeze(-1) * own
        if gradient is None:
            return first, None
        second = _HessianProduct.apply(z, gradient, ctx.number)
        return second if first is None else first + second, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None], z: Tensor, number: int
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _LogDensity.apply(_lead(z, in_dims[0], info.batch_size), number), (0, 0)


class _HessianProduct(torch.autograd.Function):
    """Second derivatives times a vector, where differentiation ends."""

    @staticmethod
    def forward(z: Tensor, vector: Tensor, number: int) -> Tensor:
        return _hessian_product(z, vector, number)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, product: Tensor) -> Any:
        raise NotImplementedError(NO_THIRD)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, int | None, None],
        z: Tensor,
        vector: Tensor,
        number: int,
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        lead = _lead(z, in_dims[0], size), _lead(vector, in_dims[1], size)
        return _HessianProduct.apply(*lead, number), 0


class _Parameters(torch.autograd.Function):
    """Stan's parameters, which nothing differentiates."""

    @staticmethod
    def forward(z: Tensor, number: int, count: int) -> Tensor:
        return _parameters(z, number, count)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, parameters: Tensor) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None, None], z: Tensor, number: int, count: int
    ) -> tuple[Tensor, int]:
        return _Parameters.apply(_lead(z, in_dims[0], info.batch_size), number, count), 0
