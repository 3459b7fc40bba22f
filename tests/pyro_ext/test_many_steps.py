"""Programs of many steps, in float64: what is summed and what is computed at once, and the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.indexing import Vindex
from torch import Tensor

import pyro_ext as px
from benchmarks.discrete.programs import K
from pyro_ext.density import elimination, enumeration
from pyro_ext.graphs import joined_steps
from pyro_ext.graphs.joined_steps import joined
from tests.backends import backend_of, use_float64
from tests.density.test_long_chains import assert_right

use_float64()

STEPS = 12
Y = torch.tensor(np.random.default_rng(0).normal(0.0, 2.0, STEPS))
ROWS = torch.tensor(np.random.default_rng(1).integers(0, 2, (3, STEPS, 2)) * 1.0)
LENGTHS = torch.tensor([12, 7, 3])


def transitions(*size: int) -> Tensor:
    return pyro.sample("transitions", dist.Dirichlet(torch.ones(*size)).to_event(len(size) - 1))


def locations(*size: int) -> Tensor:
    return pyro.sample("location", dist.Normal(torch.zeros(size), 3.0).to_event(len(size)))


def two_layers() -> None:
    """Two chains, of which the second depends on the first."""
    slow = pyro.sample("slow", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    fast, location = transitions(2, K, K), locations(2, K)
    w, x = 0, 0
    for t in pyro.markov(range(STEPS)):
        w = pyro.sample(f"w_{t}", dist.Categorical(slow[w]))
        x = pyro.sample(f"x_{t}", dist.Categorical(Vindex(fast)[w, x]))
        pyro.sample(f"y_{t}", dist.Normal(Vindex(location)[w, x], 1.0), obs=Y[t])


def second_order() -> None:
    """A chain that depends on the two states before."""
    moves, location = transitions(K, K, K), locations(K)
    before, last = 0, 0
    for t in pyro.markov(range(STEPS), history=2):
        before, last = last, pyro.sample(f"z_{t}", dist.Categorical(Vindex(moves)[before, last]))
        pyro.sample(f"y_{t}", dist.Normal(location[last], 1.0), obs=Y[t])


def sequences() -> None:
    """Series of several lengths, each of several tones."""
    moves = transitions(K, K)
    probs = pyro.sample("probs", dist.Beta(torch.ones(K, 2), 2.0).to_event(2))
    tones = pyro.plate("tones", 2, dim=-1)
    with pyro.plate("sequences", 3, dim=-2):
        x: Any = 0
        for t in pyro.markov(range(STEPS)):
            with poutine.mask(mask=(t < LENGTHS).unsqueeze(-1)):
                x = pyro.sample(f"x_{t}", dist.Categorical(moves[x]))
                with tones as tone:
                    y = dist.Bernoulli(Vindex(probs)[x, tone])
                    pyro.sample(f"y_{t}", y, obs=ROWS[:, t])


def one_by_one() -> None:
    """Rows of a mixture one after another, and a site that they all share."""
    weights, location = transitions(K), locations(K)
    shift = pyro.sample("shift", dist.Bernoulli(0.3))
    for row in pyro.plate("rows", STEPS):
        z = pyro.sample(f"z_{row}", dist.Categorical(weights))
        pyro.sample(f"y_{row}", dist.Normal(location[z] + shift, 1.0), obs=Y[row])


def local_latents() -> None:
    """A chain with continuous sites of each step."""
    moves, location = transitions(K, K), locations(K)
    z: Any = 0
    for t in pyro.markov(range(STEPS)):
        z = pyro.sample(f"z_{t}", dist.Categorical(moves[z]))
        scale = pyro.sample(f"scale_{t}", dist.LogNormal(location[z], 1.0))
        pyro.sample(f"y_{t}", dist.Normal(0.0, scale), obs=Y[t])


PROGRAMS = [two_layers, second_order, sequences, one_by_one, local_latents]


@pytest.mark.parametrize("model", PROGRAMS)
def test_sums_in_rounds_are_the_hosts_sums(
    model: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (enumeration, elimination):
        monkeypatch.setattr(room, "FEW", 2)
    target = px.LogDensity(model, evaluation="handlers")
    z = torch.cos(torch.arange(target.dim)).requires_grad_()
    found = sum(target.evaluate(z, target.bind()))
    expected = -initialize_model(model)[1](target.layout.split(z))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-10)
    gradients = [torch.autograd.grad(value, z)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("model", PROGRAMS)
def test_steps_at_once_are_the_hosts_steps(
    model: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enumeration, "FEW", 2)
    monkeypatch.setattr("pyro_ext.density.evaluation.MANY_SITES", 1)
    monkeypatch.setattr(joined_steps, "FEWEST", 1)
    monkeypatch.setattr(joined_steps, "TIMES_FEWER", 1)
    target = px.LogDensity(model)
    z = torch.cos(torch.arange(2 * target.dim)).reshape(2, -1)
    found = target.full_score(z, target.bind())
    (plan,) = target._evaluation._value._plans.values()
    assert plan is not None
    potential = initialize_model(model)[1]
    for row, score, prior, likelihood in zip(z, *found, strict=True):
        flat = row.clone().requires_grad_()
        value = -potential(target.layout.split(flat))
        torch.testing.assert_close(prior + likelihood, value.detach(), rtol=1e-10, atol=1e-9)
        expected = torch.autograd.grad(value, flat)[0]
        torch.testing.assert_close(score, expected, rtol=1e-9, atol=1e-9)


# -- one site ---------------------------------------------------------------------------------


def one_site(y: Tensor) -> None:
    """The chain of :func:`assert_right` as one site, which starts before the first step."""
    logits = pyro.sample("logits", dist.Normal(torch.zeros(K, K), 1.0).to_event(2))
    location = pyro.sample("location", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    start = torch.tensor([0.0, -torch.inf, -torch.inf])
    emission = dist.Normal(location, 1.0)
    pyro.sample("y", dist.DiscreteHMM(start, logits, emission, duration=len(y)), obs=y)


def test_a_chain_in_one_site_is_that_by_hand() -> None:
    assert_right(backend_of("pyro"), one_site, 2000)


def test_gradients_of_safe_log_are_right_where_numbers_are_small() -> None:
    # Pyro's own are those of 1 / epsilon there.
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", pyro.ops.special.safe_log((-x).exp()))

    target = px.LogDensity(model)
    found = target.full_score(torch.tensor([[50.0]]), target.bind())
    torch.testing.assert_close(found.score, torch.tensor([[-51.0]]))
    assert "apply" not in vars(pyro.ops.special._SafeLog)


# -- operations at once -----------------------------------------------------------------------

DATA = torch.tensor(np.random.default_rng(2).normal(size=(40, 3)))


def in_steps(inputs: Any) -> dict[str, Tensor]:
    """Steps with what differs between them: rows, numbers, windows, kinds."""
    z, data = inputs
    total, kept = torch.zeros(()), []
    for t, row in enumerate(data):
        scale = float(1 + t % 2)
        window = data[max(t - 2, 0) : t + 1].sum()
        top = torch.sort(row * z).values[-1]
        term = (torch.tanh(row @ z) * scale + window + top - row[t % 3]) ** 2
        total = total + term
        kept.append(term * z)
    ends = torch.cat([kept[3], kept[0]])
    return {"total": total, "kept": torch.stack(kept, 1), "ends": ends, "joined": torch.cat(kept)}


def test_joined_steps_have_the_values_and_gradients_of_the_steps() -> None:
    z = torch.tensor([0.3, -1.2, 0.7])
    short = joined(in_steps, [z, DATA])
    assert short is not None
    kinds = short.kinds  # type: ignore[attr-defined]
    assert sum(1 if kind.joined else len(kind.nodes) for kind in kinds) < 120
    inputs = [torch.tensor([-0.4, 0.9, 0.1]), DATA.flip(0)]
    for one, two in zip(short(inputs).values(), in_steps(inputs).values(), strict=True):
        torch.testing.assert_close(one, two)

    def summed(function: Any) -> Callable[[Tensor], Tensor]:
        return lambda z: sum((value**2).sum() for value in function([z, DATA]).values())

    own, expected = (torch.func.grad(summed(each))(z) for each in (short, in_steps))
    torch.testing.assert_close(own, expected)


class Doubled(torch.autograd.Function):
    """Has a gradient of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 2.0 * gradient


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return 2.0 * x


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda x: x.clone().add_(1.0), id="in place"),
        pytest.param(lambda x: x + torch.randn(()), id="random"),
        pytest.param(lambda x: x * x.sum().item(), id="a number for Python"),
        pytest.param(lambda x: x + without_gradient(x), id="no gradient"),
        pytest.param(Doubled.apply, id="a gradient of its own"),
    ],
)
def test_what_is_more_than_its_operations_is_left_as_it_is(step: Any) -> None:
    def repeated(inputs: Any) -> Tensor:
        plain = sum((inputs[0] * t).sin().sum() for t in range(200))
        return plain + sum(step(inputs[0] * t).sum() for t in range(100))

    def without(inputs: Any) -> Tensor:
        return sum((inputs[0] * t).sin().sum() for t in range(300))

    z = torch.tensor([0.3, -1.2, 0.7])
    assert joined(without, [z]) is not None
    assert joined(repeated, [z]) is None
