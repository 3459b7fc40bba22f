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


def _solve(A: Tensor, B: Tensor, **options: Any) -> Tensor:
    # Not by solve_ex: its derivative solves with the same matrix, and raises.
    failed = _linalg.lu_factor_ex(A.detach()).info != 0
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    regular = torch.where(failed[..., None, None], identity, A)
    return _spoiled(_linalg.solve(regular, B, **options), failed, A)


def _of_finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises for entries that are not finite, of zeros in their place."""

    def of_finite(A: Tensor, *args: Any, **options: Any) -> Any:
        failed = ~torch.isfinite(A).all(-1).all(-1)
        found = function(torch.where(failed[..., None, None], 0.0, A), *args, **options)
        if isinstance(found, Tensor):
            return _spoiled(found, failed, A)
        return type(found)([_spoiled(each, failed, A) for each in found])

    return of_finite


_WITH_NAN: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((_linalg.cholesky, torch.cholesky, Tensor.cholesky), _cholesky),
    **dict.fromkeys((_linalg.inv, torch.inverse, Tensor.inverse), _told(_linalg.inv_ex)),
    _linalg.lu_factor: _told(_linalg.lu_factor_ex),
    _linalg.solve: _solve,
    **{
        function: _of_finite(function)
        for function in (
            _linalg.eigh,
            _linalg.eigvalsh,
            _linalg.eig,
            _linalg.eigvals,
            _linalg.svd,
            _linalg.svdvals,
            _linalg.pinv,
            _linalg.cond,
            _linalg.lstsq,
            _linalg.matrix_norm,
            _linalg.matrix_rank,
            torch.svd,
            Tensor.svd,
            torch.pinverse,
            Tensor.pinverse,
        )
    },
}


class FailedFactors(TorchFunctionMode):
    """Context in which these functions give NaN for a matrix that they would raise for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        with_nan = _WITH_NAN.get(func)
        if with_nan is None or "out" in kwargs:
            return func(*args, **kwargs)
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        return with_nan(*args, **kwargs)
