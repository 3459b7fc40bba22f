"""Kronecker factors on tensors, see :mod:`ppl_ext.curvature.outer_products`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ppl_ext.curvature import outer_products
from pyro_ext.curvature.curvature import Curvature


def _repeated(steps: int, step: Callable[[Any], Any], tree: Any) -> Any:
    for _ in range(steps):
        tree = step(tree)
    return tree


_ROWS = outer_products.OuterProducts(
    torch,
    lambda direction, like: torch.from_numpy(direction).to(like),
    Curvature,
    _repeated,
    lambda holds, first, second, tree: (first if bool(holds) else second)(tree),
)
outer_vectors, rank_one_sites = _ROWS.vectors, _ROWS.sites
kronecker_factors = partial(outer_products.kronecker_factors, _ROWS)
