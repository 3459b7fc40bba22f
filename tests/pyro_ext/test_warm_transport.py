"""Densities in the coordinates that a flow leads from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_ext as px
from pyro_ext.density import LogDensity
from pyro_ext.warm_chains import _through

torch.set_default_dtype(torch.float64)


def model() -> None:
    pyro.sample("scale", dist.Gamma(2.0, 1.0))
    pyro.sample("x", dist.Normal(torch.tensor([1.0, -1.0]), 0.5).to_event(1))


def test_scores_are_the_slopes_of_values_with_the_jacobian() -> None:
    guide: Any = px.AutoPlanarFlow(model, 2)
    guide()
    generator = torch.Generator().manual_seed(0)
    for parameter in guide.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    target = LogDensity(model)
    transport, data = guide.get_transform(), target.bind()
    piece = _through(transport, target, data)
    u = np.random.default_rng(1).normal(size=(4, 3))
    values, scores = piece(u, 0)
    # By the determinant of the whole Jacobian.
    for row in range(4):
        point = torch.as_tensor(u[row])
        jacobian = torch.autograd.functional.jacobian(transport, point)
        z = transport(point).detach()[None]
        expected = target.full_log_density(z, data)[0] + torch.linalg.det(jacobian).abs().log()
        np.testing.assert_allclose(float(values[row]), float(expected), rtol=1e-9)
    for k, step in enumerate(1e-5 * np.eye(3)):
        slope = (piece(u + step, 0)[0] - piece(u - step, 0)[0]) / 2e-5
        np.testing.assert_allclose(scores[:, k], slope, rtol=1e-4, atol=1e-6)
