"""Curvature of programs in Pyro that is made of draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.curvature.program_curvature import KRONECKER_STEPS, GaussNewton
from pyro_ext.curvature import (
    ProgramCurvature,
    gauss_newton_products,
    jacobian_rows,
    program_curvature,
)
from pyro_ext.curvature.fisher import DRAWS
from pyro_ext.curvature.gauss_newton import drawn_at, drawn_from, rows_of_one
from pyro_ext.density import LogDensity
from pyro_ext.density.handlers import global_generator

torch.set_default_dtype(torch.float64)

X = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 2)))
Z = torch.from_numpy(np.random.default_rng(5).normal(size=(1, 6)))


def test_sweeps_of_one_curvature_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: Any) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros((2, 3)), 1.0).to_event(2))
        with pyro.plate("N", 12, subsample_size=4) as i:
            rate = torch.exp(torch.tanh(x[i] @ w).sum(-1))
            # Its Fisher information is not known.
            pyro.sample("y", dist.Pareto(1.0, rate), obs=2.0 + 0.0 * x[i, 0])

    drawn = []

    def spy(*rest: Any) -> Any:
        values = drawn_at(*rest)
        drawn.append(values["y"].numpy())
        return values

    target = LogDensity(model, (X,), data_chunk=6)
    data = target.bind(X)
    found = ProgramCurvature(target, data, GaussNewton("kfac"))
    monkeypatch.setattr(program_curvature, "drawn_at", spy)
    found.at(target, Z, data, None)
    first, second = drawn[:2]
    assert (first != second).any()
    for sweep in range(2, len(drawn), 2):
        np.testing.assert_array_equal(drawn[sweep : sweep + 2], [first, second])
    # One sweep more looks at the ranks of the rows.
    assert len(drawn) == 2 * (2 * KRONECKER_STEPS + 1)


def mixture(x: Any) -> None:
    """Two overlapping components, whose Fisher information is made of draws, and a Normal site."""
    z = pyro.sample("z", dist.Normal(torch.zeros(5), 1.0).to_event(1))
    weights = dist.Categorical(logits=torch.stack([z[0], torch.zeros(())]))
    parts = dist.Normal(z[1:3], torch.exp(z[3:]))
    with pyro.plate("N", len(x)):
        pyro.sample("y", dist.MixtureSameFamily(weights, parts), obs=x[:, 0])
        pyro.sample("u", dist.Normal(z[0] * x[:, 1], 1.0), obs=x[:, 1])


def test_particles_together_are_those_of_one_after_another() -> None:
    """With the same draws. Particles at one place have draws of their own."""
    target = LogDensity(mixture, (X,))
    data = target.bind(X)
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 5)))
    z[2] = z[1]
    program = ProgramCurvature(target, data, GaussNewton())
    parameters = torch.func.vmap(lambda each: drawn_from(target.outputs(each, data, {})))(z)
    with global_generator(0):
        drawn = drawn_at(target.outputs(z[0], data, {}), parameters)["y"]
    assert drawn.shape == (3, DRAWS, 12) and (drawn[1] != drawn[2]).any()
    expected = []
    for values, position in zip(drawn, z, strict=True):
        one = rows_of_one(target, position, data, {}, ["y", "u"], program.rows, drawn={"y": values})
        expected.append(one.T @ one)

    with global_generator(0):
        found = program.at(target, z, data, None).dense()
    np.testing.assert_allclose(found, torch.stack(expected) + torch.eye(5), rtol=1e-10, atol=1e-12)
    assert program._rows.mode == program._parameters.mode == "graph"

    with global_generator(0):
        rows = jacobian_rows(target, z, data, {}, program.rows)
    np.testing.assert_allclose(rows.mT @ rows, torch.stack(expected), rtol=1e-10, atol=1e-12)
    with global_generator(0):
        product = gauss_newton_products(target, z, data, {})
    vectors = torch.flip(z, dims=(0,))
    wanted = torch.einsum("pab,pb->pa", torch.stack(expected), vectors)
    for _ in range(2):
        np.testing.assert_allclose(product(vectors), wanted, rtol=1e-10, atol=1e-12)


def test_distributions_that_are_drawn_together() -> None:
    """Counts, positive values and vectors, whose samplers have rules of their own."""

    def model(x: Any) -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        half = torch.full((12, 2), 0.5)
        rate = torch.stack([z[0] * x[:, 0], z[1] * x[:, 1]], -1).exp()
        with pyro.plate("N", 12):
            chosen = dist.Categorical(half)
            for name, parts in {
                "counts": dist.Poisson(rate),
                "positive": dist.Gamma(rate, 1.0),
                "trials": dist.Binomial(5, logits=rate.log()),
                "simplex": dist.Dirichlet(rate[..., None] * torch.ones(3)),
            }.items():
                mixed = dist.MixtureSameFamily(chosen, parts)
                value = torch.full(mixed.batch_shape + mixed.event_shape, 1.0 / 3.0)
                pyro.sample(name, mixed, obs=value.round() if parts.support.is_discrete else value)

    target = LogDensity(model, (X,))
    data = target.bind(X)
    program = ProgramCurvature(target, data, GaussNewton())
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 2)))
    with global_generator(0):
        found = program.at(target, z, data, None).dense()
    assert torch.isfinite(found).all() and (torch.linalg.eigvalsh(found) >= 1.0).all()
    assert program._rows.mode == program._parameters.mode == "graph"
