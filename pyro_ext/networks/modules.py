"""A torch module taken apart: its parameters by name, and what of it cannot be in a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd

from ppl_ext.errors import ArgumentError
from ppl_ext.networks.modules import refuse_batch_statistics, refuse_random_layers
from ppl_ext.networks.parameters import Parameter
from ppl_ext.options import described

_NORMALISATION = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def take_apart(module: Any) -> tuple[dict[str, Parameter], Callable[..., Any]]:
    """The parameters of a module, and a function that makes a callable of values for them.

    Raises
    ------
    ArgumentError
        It is no module of torch, or has sites of its own.
    ModelCheckError
        A layer uses the statistics of the batch, or draws at random.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"Expected module to be a torch.nn.Module, found {described(module)}.")
    if any(isinstance(each, PyroModule) for each in module.modules()):
        raise ArgumentError(
            "Expected a plain torch.nn.Module, found a PyroModule, which has sites of its own. "
            "Call it itself, or give random_module the module that it was made from."
        )
    layers = dict(module.named_modules())
    refuse_batch_statistics(
        [path for path, layer in layers.items() if _uses_batch(layer)], "module.eval()"
    )
    refuse_random_layers([path for path, layer in layers.items() if _draws(layer)], "module.eval()")
    found = {}
    for path, value in module.named_parameters():
        owner, _, leaf = path.rpartition(".")
        inputs, units = _axes(layers[owner], leaf, value)
        scale = isinstance(layers[owner], _NORMALISATION) and leaf == "weight"
        shape = tuple(value.shape)
        found[path] = Parameter(path, shape, inputs, units, float(scale), value.detach())

    return found, partial(_with_values, module)


def _with_values(module: nn.Module, values: Mapping[str, Tensor]) -> Callable[..., Any]:
    # Parameters without a prior are constants. No gradient is gathered for them.
    fixed = {path: value.detach() for path, value in module.named_parameters()}
    state = {**fixed, **values}

    def call(*args: Any, **kwargs: Any) -> Any:
        # The user's module is not written to, and keeps the weights that it came with.
        return torch.func.functional_call(module, state, args, kwargs)

    return call


def _uses_batch(layer: nn.Module) -> bool:
    """Whether a layer's output for a row depends on the others, or changes its buffers."""
    if not isinstance(layer, _NormBase):
        return False
    of_rows = isinstance(layer, nn.modules.instancenorm._InstanceNorm)
    tracks = layer.running_mean is not None
    return layer.training and tracks if of_rows else layer.training or not tracks


def _draws(layer: nn.Module) -> bool:
    """Whether a layer draws at random: dropout, within attention and recurrent layers too."""
    if not layer.training:
        return False
    # Layers of dropout name their probability p, those that have some inside dropout.
    own = getattr(layer, "p", 0.0) if not list(layer.parameters()) else 0.0
    inside = getattr(layer, "dropout", 0.0)
    return any(isinstance(rate, float) and rate > 0.0 for rate in (own, inside))


def _axes(layer: nn.Module, leaf: str, value: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes of inputs and of units of a parameter."""
    # Nothing is summed over the axes of a table, nor over those that a scale is spread over.
    if value.dim() < 2 or "weight" not in leaf or isinstance(layer, _EMBEDDINGS + _NORMALISATION):
        return (), ()
    return ((0,), (1,)) if isinstance(layer, _ConvTransposeNd) else ((1,), (0,))
