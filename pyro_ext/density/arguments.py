"""The model's arguments: whether they fit its signature and its plates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ppl_ext.arguments import check_call, columns_as_arrays
from ppl_ext.batches.passes import Place
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.handlers import SiteHandler, without_host_checks
from pyro_ext.density.layout import Data


def as_data(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: torch.dtype | None = None,
) -> Data:
    """Arguments of one call, as they go through the door of :func:`ppl_ext.arguments.check_call`.

    ``dtype`` is that of latents; None where nobody has to hear of digits again.

    Raises
    ------
    ArgumentError
        The arguments do not fit the signature of the model, or something of them would be lost.
    """
    name = str(dtype).removeprefix("torch.")
    fraction = np.dtype(name) if name in ("float16", "float32", "float64") else None
    args, kwargs = columns_as_arrays(args, kwargs, placing(dtype), model)
    check_call(model, args, kwargs, None, fraction)
    if any(_of_inference(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
        # Tensors made in torch.inference_mode cannot be differentiated through, nor copied in it.
        with torch.inference_mode(False):
            args, kwargs = pytree.tree_map(
                lambda leaf: leaf.clone() if _of_inference(leaf) else leaf, (args, kwargs)
            )
    return Data(args, kwargs)


def placing(dtype: torch.dtype | None) -> Place:
    """What makes an array of a loader a tensor of its own, on torch's default device.

    Numbers of NumPy with a fraction get ``dtype``, by default torch's own; tensors keep theirs.
    """
    floats = torch.get_default_dtype() if dtype is None else dtype
    device = torch.get_default_device()

    def place(leaf: Any) -> Tensor:
        if isinstance(leaf, Tensor):
            own = leaf.detach()
            # A copy: loaders may fill the memory of a batch with the next one.
            return own.clone() if own.device.type != "cpu" else own.to(device, copy=True)
        # A copy as well, and writable: ``from_numpy`` warns of arrays that are not.
        tensor = torch.from_numpy(np.array(leaf))
        return tensor.to(device, floats if tensor.is_floating_point() else tensor.dtype)

    return place


def _of_inference(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_inference()


def partial_plates(bound: BoundModel, data: Data) -> dict[str, tuple[int, int]]:
    """Plates that arguments hold a batch of: name to all rows, and those that are held."""
    origin = torch.zeros(bound.layout.dim, dtype=bound.dtype, device=bound.device)
    indices = bound.first_rows()
    handler = SiteHandler(bound.layout.split(origin), indices)
    with torch.no_grad(), without_host_checks():
        plates = bound.run(handler, (data.args, data.kwargs, indices))
    return {name: sizes for name, sizes in plates.items() if name not in bound.plates}
