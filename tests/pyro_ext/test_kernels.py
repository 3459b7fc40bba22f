"""Kernels of Pyro, and its rule for the bandwidth."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD as HostSVGD
from pyro.infer.svgd import IMQSteinKernel, RBFSteinKernel

from ppl_ext.errors import ArgumentError
from pyro_ext.kernels import RBF, HostKernel, bandwidth
from tests.kernel_support import cloud as arrays
from tests.kernel_support import rbf, stein_direction

FOUR_POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0], [4.0, 2.0]], dtype=torch.float64)


def cloud(num: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays(num, dim, seed)))


@pytest.mark.parametrize("num", [2, 3, 4, 5, 20, 21])
def test_pyro_rule_is_the_hosts(num):
    particles, _ = cloud(num, 3, seed=num)
    differences = particles.unsqueeze(0) - particles.unsqueeze(1)
    expected = RBFSteinKernel()._bandwidth(differences**2)
    torch.testing.assert_close(bandwidth("pyro", particles), expected, rtol=1e-12, atol=0)


def test_pyro_rule_on_four_points_is_the_hosts():
    differences = FOUR_POINTS.unsqueeze(0) - FOUR_POINTS.unsqueeze(1)
    expected = RBFSteinKernel()._bandwidth(differences**2)
    torch.testing.assert_close(bandwidth("pyro", FOUR_POINTS), expected, rtol=1e-14, atol=0)


def host_displacement(kernel, mode, particles):
    """Where Pyro's own SVGD moves the particles of a one-site model with SGD at rate 1."""
    pyro.clear_param_store()
    precision = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
    target = dist.MultivariateNormal(
        torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
        precision_matrix=precision.double(),
    )

    def model():
        pyro.sample("z", target)

    optim = pyro.optim.SGD({"lr": 1.0})
    host = HostSVGD(model, kernel, optim, len(particles), max_plate_nesting=0, mode=mode)
    host.guide()
    pyro.param("svgd_particles").data = particles.reshape(-1).clone()
    host.step()
    moved = pyro.param("svgd_particles").detach().reshape(particles.shape)
    pyro.clear_param_store()
    inputs = particles.clone().requires_grad_()
    (scores,) = torch.autograd.grad(target.log_prob(inputs).sum(), inputs)
    return moved - particles, scores


class TestHostKernels:
    @pytest.mark.parametrize("mode", ["univariate", "multivariate"])
    @pytest.mark.parametrize(
        "host", [RBFSteinKernel(), IMQSteinKernel(), IMQSteinKernel(0.8, -0.7)]
    )
    def test_moves_as_pyros_driver(self, host, mode):
        particles, _ = cloud(7, 3)
        expected, scores = host_displacement(host, mode, particles)
        phi, _ = HostKernel(host, mode=mode).direction({}, particles, scores)
        torch.testing.assert_close(phi, expected, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("num", [2, 7])
    def test_univariate_against_autograd(self, num):
        particles, scores = cloud(num, 3)
        phi, _ = HostKernel(RBFSteinKernel()).direction({}, particles, scores)
        width = bandwidth("pyro", particles)
        for d in range(3):
            one, score = (each[:, d : d + 1].numpy() for each in (particles, scores))
            expected, _ = stein_direction(rbf(np.eye(1), width[d].item()), one, score)
            np.testing.assert_allclose(phi[:, d : d + 1], expected, rtol=1e-9, atol=1e-11)

    def test_multivariate_is_our_pyro_rule(self):
        particles, scores = cloud(7, 3)
        host = HostKernel(RBFSteinKernel(), mode="multivariate")
        ours = RBF("pyro")
        torch.testing.assert_close(
            host.direction({}, particles, scores)[0], ours.direction({}, particles, scores)[0]
        )
        torch.testing.assert_close(host.gram({}, particles), ours.gram({}, particles))

    def test_other_modes_are_refused(self):
        with pytest.raises(ArgumentError, match="mode"):
            HostKernel(RBFSteinKernel(), mode="matrix")
