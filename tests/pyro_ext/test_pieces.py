"""Long vectors in pieces that are worked on side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import AutoDiagonalNormal

from pyro_ext import pieces
from pyro_ext.guides import flat_density
from pyro_ext.guides.flat_density import Moments
from pyro_ext.score.long_vectors import _softplus
from tests.guides_support import DIM, model_of

torch.set_default_dtype(torch.float64)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    return int(request.param)


def test_results_have_the_order_of_the_pieces(threads: int) -> None:
    workers = []

    def worker() -> Callable[[int], int]:
        workers.append(1)
        return lambda piece: piece**2

    assert pieces.side_by_side(worker, list(range(7))) == [k**2 for k in range(7)]
    assert len(workers) == threads


def test_an_error_in_a_thread_is_raised(threads: int) -> None:
    def worker() -> Callable[[int], float]:
        return lambda piece: 1.0 / piece

    with pytest.raises(ZeroDivisionError):
        pieces.side_by_side(worker, [1, 2, 0, 4])


def test_pieces_make_up_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LENGTH", 3)
    found = pieces.of_vector(torch.zeros(()), 8)
    assert [(each.start, each.stop) for each in found] == [(0, 3), (3, 6), (6, 8)]


def test_long_vectors_are_drawn_in_pieces(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many different numbers as entries, the same by any number of threads, and Normal."""
    monkeypatch.setattr(pieces, "LENGTH", 2)
    density = flat_density(AutoDiagonalNormal(model_of("pyro")), seed=0)
    mean, scale = torch.arange(DIM) - 1.0, 1.0 + torch.arange(DIM)
    parameters = density.set_moments(density.live_parameters(), Moments(mean, scale))

    def standard(number: int) -> torch.Tensor:
        draws = density.sample(parameters, torch.Generator().manual_seed(3), number)
        return (draws - mean) / scale

    found = standard(2000)
    assert len(np.unique(np.round(found.numpy(), 9))) == 2000 * DIM
    # Five standard errors.
    torch.testing.assert_close(found.mean(0), torch.zeros(DIM), rtol=0, atol=5 / 2000**0.5)
    torch.testing.assert_close(found.var(0), torch.ones(DIM), rtol=0, atol=5 * (2 / 2000) ** 0.5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    torch.testing.assert_close(standard(2000), found, rtol=0, atol=0)


@pytest.mark.parametrize("shift", [-30.0, -5.0, 0.0, 5.0, 50.0])
def test_softplus_and_its_derivative(shift: float) -> None:
    x = torch.linspace(-3.0, 3.0, 61) + shift
    value, slope = torch.empty_like(x), torch.empty_like(x)
    _softplus(x, value, slope)
    torch.testing.assert_close(value, torch.nn.functional.softplus(x), rtol=1e-9, atol=0)
    torch.testing.assert_close(slope, x.sigmoid(), rtol=1e-12, atol=0)
