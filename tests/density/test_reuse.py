"""Long results of a traced graph that are written over values that are not needed any more."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_ext.density import LogDensity
from pyro_ext.graphs import in_place, lifting
from pyro_ext.graphs.reuse import write_over
from pyro_ext.graphs.simplify import replayed

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
HELD = torch.linspace(0.5, 2.0, 24)


def by_layer(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    normalised, mean, rstd = torch.native_layer_norm(x, [6], None, None, 1e-5)
    return (normalised * 2.0 + mean.expand(4, 6), rstd.expand(4, 6) + x)


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda x, y: (x.exp().sin() * y,), 2),
        # Inputs, what is held and what is returned stay.
        (lambda x, y: (x + y, y * 2.0), 0),
        (lambda x, y: (HELD.view(4, 6) * x, HELD.view(4, 6) + y), 0),
        (lambda x, y: (lambda a: (a, a + y))(x.exp()), 0),
        # A view is the memory of what it is a view of.
        (lambda x, y: (lambda a: (a.view(6, 4).sin().sum(0), a + y))(x.exp()), 1),
        (lambda x, y: (lambda a: (a.view(6, 4)[1:].sum(0), a.view(4, 6).sin()))(x.exp()), 1),
        (lambda x, y: (lambda a: ((a.T.reshape(4, 6) + a).sin(),))(x.exp()), 2),
        # Of another layout: an entry would be read after another was written in its place.
        (lambda x, y: (y * x.exp().view(6, 4).T,), 0),
        (lambda x, y: (lambda a: ((a + a.view(6, 4).T).sum(),))(x.exp()), 0),
        # An expanded number is one place in memory.
        (lambda x, y: (x.sum().exp().expand(4, 6) * y,), 0),
        # Items of several results have memory of their own, items of several views have not.
        (by_layer, 2),
        (lambda x, y: (lambda a, b: (a.sin(), (b + 1.0).sum()))(*x.exp().view(2, 12)), 1),
    ],
)
def test_results_are_written_over_what_is_not_needed(function: Function, written: int) -> None:
    """The same results, and inputs as they were; as many are written over others as can be."""
    x, y = (torch.randn(4, 6, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    module = make_fx(function)(x, y)
    write_over(module.graph, 4)
    outs = [node for node in module.graph.nodes if node.kwargs.get("out") is not None]
    given = [each.clone() for each in (x, y, HELD)]
    for one, two in zip(replayed(module)(x, y), function(x, y), strict=True):
        torch.testing.assert_close(one, two)
    assert all(map(torch.equal, given, (x, y, HELD)))
    assert len(outs) == written


def test_short_results_stay_as_they_are() -> None:
    module = make_fx(lambda x: x.exp().sin())(HELD)
    write_over(module.graph, 25)
    assert not any(node.kwargs for node in module.graph.nodes)


def test_scores_of_an_attention_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written over or not, of one position and of several."""
    x = torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(0))

    def model() -> None:
        weights = pyro.sample("weights", dist.Normal(torch.zeros(8, 24), 0.5).to_event(2))
        shift = pyro.sample("shift", dist.Normal(torch.zeros(24), 0.5).to_event(1))
        heads = (x @ weights + shift).view(5, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind()
        found = torch.nn.functional.scaled_dot_product_attention(*heads)
        found = torch.nn.functional.gelu(found.transpose(1, 2).reshape(5, 6, 8) + x)
        pyro.factor("fit", -found.square().sum())

    target, data = LogDensity(model), LogDensity(model).bind()
    for number in (1, 3):
        z = torch.randn(number, target.dim, generator=torch.Generator().manual_seed(1))
        expected = LogDensity(model, evaluation="handlers").score(z, data)
        monkeypatch.setattr(in_place, "LONG", 4)
        monkeypatch.setattr(lifting, "LONG", 4)
        found = LogDensity(model).score(z, data)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two)
