"""Values of distributions at many draws at once.

Families of torch and Pyro fill a new tensor with random numbers in place, which ``vmap`` refuses
where these have to differ from draw to draw. The same numbers out of place it can make. Families
that look at their values, or draw by a kernel that ``vmap`` does not know, are drawn as the host
draws a batch of them: with the draws as one more dimension of their parameters. Programs that fill
a tensor of zeros with what differs from draw to draw get such tensors for each draw.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _normal(like: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * torch.randn(like.shape, dtype=like.dtype, device=like.device)


def _uniform(like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(like.shape, dtype=like.dtype, device=like.device)


def _exponential(like: Tensor, rate: float = 1.0) -> Tensor:
    tiny = torch.finfo(like.dtype).tiny
    # By the inverse of the distribution function. ``rand`` may be 0, an exponential draw is not.
    return -torch.log1p(-_uniform(like)).clamp(max=-tiny) / rate


def _cauchy(like: Tensor, median: float = 0.0, scale: float = 1.0) -> Tensor:
    return median + scale * torch.tan(math.pi * (_uniform(like) - 0.5))


_OUT_OF_PLACE: Mapping[Any, Callable[..., Tensor]] = {
    Tensor.normal_: _normal,
    Tensor.uniform_: _uniform,
    Tensor.exponential_: _exponential,
    Tensor.cauchy_: _cauchy,
}


def _binomial(count: Tensor, probs: Tensor) -> Tensor:
    return torch.binomial(count + torch.zeros_like(probs), probs)


def _new_zeros(like: Tensor, *size: Any) -> Tensor:
    return like.new_zeros(*size)


#: The same value by functions that ``vmap`` can make differ from draw to draw.
_FOR_EACH_DRAW: Mapping[Any, Callable[..., Tensor]] = {
    Tensor.new: _new_zeros,
    torch.binomial: _binomial,
}


class _OutOfPlace(TorchFunctionMode):
    """Random numbers come in a tensor of their own where they cannot fill the given one."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function, or what stands in for it."""
        kwargs = kwargs or {}
        # A tensor that is one for all draws cannot be filled with what differs.
        function = _FOR_EACH_DRAW.get(function, function)
        if function not in _OUT_OF_PLACE:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError:
            return _OUT_OF_PLACE[function](*args, **kwargs)


class _Parameters(NamedTuple):
    """Parameters of a family, by the number of their dimensions beyond the batch, and options."""

    tensors: Mapping[str, int]
    options: tuple[str, ...] = ()


#: Families that are drawn as a batch.
_BATCHED: Mapping[type[Any], _Parameters] = {
    torch.distributions.Dirichlet: _Parameters({"concentration": 1}),
    torch.distributions.VonMises: _Parameters({"loc": 0, "concentration": 0}),
    dist.Stable: _Parameters(dict.fromkeys(("stability", "skew", "scale", "loc"), 0), ("coords",)),
    dist.ProjectedNormal: _Parameters({"concentration": 1}),
}


class _Batch(torch.autograd.Function):
    """A value of a family, whose parameters get the draws as their first dimension."""

    @staticmethod
    def forward(draw: Callable[..., Tensor], sample_shape: torch.Size, *tensors: Tensor) -> Tensor:
        """The value at one draw."""
        return draw(sample_shape, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: values have no gradient."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        draw: Callable[..., Tensor],
        sample_shape: torch.Size,
        *tensors: Tensor,
    ) -> tuple[Tensor, int]:
        """The values at many draws."""
        pairs = zip(tensors, in_dims[2:], strict=True)
        own = [
            each.expand(info.batch_size, *each.shape) if at is None else each.movedim(at, 0)
            for each, at in pairs
        ]
        # The dimensions of the sample come first, then the draws, then the batch.
        return draw(sample_shape, *own), len(sample_shape)


def _drawn_as_batch(family: type[Any], parameters: _Parameters) -> Callable[..., Tensor]:
    """A ``sample`` method for a family, which draws all values under ``vmap`` as one batch."""

    def sample(self: Any, sample_shape: Any = ()) -> Tensor:
        options = {name: getattr(self, name) for name in parameters.options}
        shapes = {n: self.batch_shape + self.event_shape[:k] for n, k in parameters.tensors.items()}
        tensors = [getattr(self, name).expand(shape) for name, shape in shapes.items()]

        def draw(sample_shape: torch.Size, *tensors: Tensor) -> Tensor:
            named = dict(zip(shapes, tensors, strict=True))
            return family(**named, **options, validate_args=False).sample(sample_shape)

        return _Batch.apply(draw, torch.Size(sample_shape), *tensors)

    return sample


def _as_batch(distribution: Any) -> Any:
    """The distribution with the families in it that are drawn as a batch."""
    new = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if isinstance(value, torch.distributions.Distribution):
            setattr(new, name, _as_batch(value))
    for family, parameters in _BATCHED.items():
        if isinstance(distribution, family):
            sample = _drawn_as_batch(family, parameters)
            # A subclass, so that the distribution is still one of its family for whoever asks.
            kind = type(distribution)
            new.__class__ = type(kind.__name__, (kind,), {"sample": sample, "rsample": sample})
    return new


class FilledApart(TorchFunctionMode):
    """Tensors that a program makes to fill are made for each of many draws.

    Parameters
    ----------
    like : Tensor
        One that differs from draw to draw.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self._like = like

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function, or what stands in for it."""
        kwargs = kwargs or {}
        if function not in (torch.zeros, torch.empty, torch.ones) or kwargs.keys() - _FILLED:
            return function(*args, **kwargs)
        value = function(*args, **kwargs)
        return self._like.new_zeros(value.shape, dtype=value.dtype, device=value.device) + value


#: What may be said of a tensor that is made for each draw.
_FILLED = {"dtype", "device", "size"}


def exponential(like: Tensor) -> Tensor:
    """Exponential draws in the shape of a tensor, others at each of many draws."""
    with _OutOfPlace():
        return torch.empty_like(like).exponential_()


def sampled(distribution: Any) -> Tensor:
    """A value of a distribution, at many draws at once too where its family is a library's.

    What a user's own family does with the tensor that it fills is not known.
    """
    inner: Any = distribution
    while type(inner).__module__.partition(".")[0] in ("torch", "pyro"):
        inner = getattr(inner, "base_dist", None)
    if inner is not None:
        return distribution.sample()
    with _OutOfPlace():
        try:
            value = distribution.sample()
        except RuntimeError:
            value = _as_batch(distribution).sample()
    return value
