"""A Pyro program run forwards: parameters from the prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_ext.density.handlers import (
    global_generator,
    is_deterministic,
    is_factor,
    isolated_parameters,
)


def one_run(
    model: Callable[..., Any], seed: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Tensor], list[str]]:
    """Values of the sample sites in one run of a model, and the names of its factors."""
    with torch.no_grad(), isolated_parameters(), global_generator(seed):
        trace = poutine.trace(model).get_trace(*args, **kwargs)
    sites = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site) and not is_deterministic(site)
    }
    factors = [name for name, site in sites.items() if is_factor(site)]
    return {name: site["value"] for name, site in sites.items()}, factors


def prior_draws(
    model: Callable[..., Any],
    seed: int,
    names: Sequence[str],
    num: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Draws (num, *site shape) of latent sites from their prior, by the host's ``Predictive``."""
    with torch.no_grad(), isolated_parameters(), global_generator(seed):
        drawn = Predictive(model, num_samples=num, return_sites=list(names))(*args, **kwargs)
        shapes, _ = one_run(model, seed, args, kwargs)
    # Pyro leaves axes of length one where plates are.
    return {name: drawn[name].reshape(num, *shapes[name].shape).cpu().numpy() for name in names}
