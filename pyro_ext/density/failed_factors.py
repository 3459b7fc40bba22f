"""Linear algebra that gives NaN where a matrix has no result, in place of raising.

torch raises when one matrix of a batch has no factor, no inverse or no finite entries. Positions
are evaluated side by side, and one where the density does not exist must not end the evaluation
of the others: its results are NaN, as JAX's are, and so are its density and score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_linalg = torch.linalg


def _spoiled(result: Tensor, failed: Tensor, matrix: Tensor) -> Tensor:
    """``result`` with NaN where ``failed``, which has the axes of the batch of matrices.

    NaN is added as a multiple of the matrix's entries, so that gradients are NaN there as well.
    """
    if not (result.is_floating_point() or result.is_complex()) or not result.numel():
        return result
    entries = torch.where(failed[..., None, None], matrix, 0.0).sum((-2, -1))
    # Zero times the entries where nothing failed, which adds nothing to value or gradient.
    added = entries * torch.zeros_like(entries).masked_fill(failed, torch.nan)
    return result + added.reshape(added.shape + (1,) * (result.dim() - added.dim()))


def _told(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose last result says which matrices failed, without that one."""

    def without(A: Tensor, **options: Any) -> Any:
        *found, failed = function(A, **options)
        results = [_spoiled(each, failed != 0, A) for each in found]
        return results[0] if len(results) == 1 else tuple(results)

    return without


def _cholesky(A: Tensor, upper: bool = False) -> Any:
    return _told(_linalg.cholesky_ex)(A, upper=upper)


def _not_finite(A: Tensor) -> Tensor:
    return ~torch.isfinite(A).all(-1).all(-1)


def _singular(A: Tensor) -> Tensor:
    return _linalg.lu_factor_ex(A).info != 0


def _without_entries_on_the_diagonal(A: Tensor) -> Tensor:
    return (A.diagonal(dim1=-2, dim2=-1) == 0.0).any(-1)


def _where_it_can(
    cannot: Callable[[Tensor], Tensor], function: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that raises where ``cannot`` says so, of the identity in their place.

    The variants that do not raise would not do: their derivatives do, with the same matrix.
    """

    def where_it_can(A: Tensor, *args: Any, **options: Any) -> Any:
        failed = cannot(A.detach())
        identity = torch.eye(*A.shape[-2:], dtype=A.dtype, device=A.device)
        found = function(torch.where(failed[..., None, None], identity, A), *args, **options)
        if isinstance(found, Tensor):
            return _spoiled(found, failed, A)
        return type(found)([_spoiled(each, failed, A) for each in found])

    return where_it_can


def _matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **options: Any
) -> Tensor:
    moved = A.movedim(tuple(dim), (-2, -1))
    found: Tensor = _where_it_can(_not_finite, _linalg.matrix_norm)(moved, ord, **options)
    for axis in sorted(each % A.dim() for each in dim) if keepdim else ():
        found = found.unsqueeze(axis)
    return found


def _norm(A: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    # Of a number p it is the norm of entries, which exists for all.
    if p == "nuc":
        return _matrix_norm(A, p, (-2, -1) if dim is None else dim, keepdim, **options)
    return torch.norm(A, p, dim, keepdim, **options)


def _either_norm(
    A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, **options: Any
) -> Any:
    axes = tuple(range(A.dim())) if dim is None else dim
    if ord in ("nuc", 2, -2) and not isinstance(axes, int) and len(axes) == 2:
        return _matrix_norm(A, ord, axes, keepdim, **options)
    return _linalg.norm(A, ord, dim, keepdim, **options)


def _matrix_power(A: Tensor, n: int) -> Tensor:
    if n >= 0:
        return _linalg.matrix_power(A, n)
    return _where_it_can(_singular, _linalg.matrix_power)(A, n)


#: Functions that raise, by what they raise on and by where they are found.
_RAISING: dict[Callable[[Tensor], Tensor], dict[Any, str]] = {
    _singular: {_linalg: "solve slogdet", torch: "slogdet logdet", Tensor: "slogdet logdet"},
    _without_entries_on_the_diagonal: {torch: "cholesky_inverse", Tensor: "cholesky_inverse"},
    _not_finite: {
        _linalg: "det eigh eigvalsh eig eigvals svd svdvals pinv cond lstsq matrix_rank",
        torch: "det svd pinverse",
        Tensor: "det svd pinverse",
    },
}
_WITH_NAN: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((_linalg.cholesky, torch.cholesky, Tensor.cholesky), _cholesky),
    **dict.fromkeys((_linalg.inv, torch.inverse, Tensor.inverse), _told(_linalg.inv_ex)),
    _linalg.lu_factor: _told(_linalg.lu_factor_ex),
    **dict.fromkeys((_linalg.matrix_power, torch.matrix_power, Tensor.matrix_power), _matrix_power),
    _linalg.matrix_norm: _matrix_norm,
    **dict.fromkeys((torch.norm, Tensor.norm), _norm),
    _linalg.norm: _either_norm,
    **{
        function: _where_it_can(cannot, function)
        for cannot, places in _RAISING.items()
        for place, names in places.items()
        for function in (getattr(place, name) for name in names.split())
    },
}


class FailedFactors(TorchFunctionMode):
    """Context in which these functions give NaN for a matrix that they would raise for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        with_nan = _WITH_NAN.get(func)
        if with_nan is None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        kwargs.pop("out", None)
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        return with_nan(*args, **kwargs)
