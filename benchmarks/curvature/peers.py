"""The Gauss-Newton matrix of the network, by this project and by libraries for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.curvature import network
from pyro_ext.curvature import GaussNewton, ProgramCurvature, gauss_newton_products
from pyro_ext.density import LogDensity


class Network:
    """The network with a known noise scale of 1, as a module and as a program."""

    def __init__(self) -> None:
        generator, dtype = torch.Generator().manual_seed(0), torch.get_default_dtype()
        self.x, self.y = (torch.from_numpy(array[: network.BATCH]) for array in network.data())
        self.x, self.y = self.x.to(dtype), self.y.to(dtype)[:, None]
        self.module = nn.Sequential(
            nn.Linear(network.FEATURES, network.HIDDEN),
            nn.ReLU(),
            nn.Linear(network.HIDDEN, network.HIDDEN),
            nn.ReLU(),
            nn.Linear(network.HIDDEN, 1),
        )
        self.target = LogDensity(self._model, (self.x, self.y))
        self.data = self.target.bind(self.x, self.y)
        shape = (network.PARTICLES, self.target.dim)
        self.z = 0.2 * torch.randn(shape, generator=generator)
        self.vector = torch.randn(self.target.dim, generator=generator)
        self.curvature = ProgramCurvature(self.target, self.data, GaussNewton())

    def _model(self, x: Tensor, y: Tensor) -> None:
        weights = {
            name: pyro.sample(name, dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim()))
            for name, value in self.module.named_parameters()
        }
        mean = torch.func.functional_call(self.module, weights, (x,))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    def load(self, particle: int) -> None:
        """Give the module a particle's weights."""
        sites = self.target.layout.split(self.z[particle])
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                value.copy_(sites[name])

    def in_module_order(self, vector: Tensor) -> Tensor:
        """A flat vector of the program as one of the module."""
        sites = self.target.layout.split(vector)
        return torch.cat([sites[name].reshape(-1) for name, _ in self.module.named_parameters()])


def products(each: Network) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """Ways to one Gauss-Newton product for every particle, and how far the peer's is from ours."""
    ours = gauss_newton_products(each.target, each.z, each.data, {})
    vectors = each.vector.expand_as(each.z)
    cases: dict[str, Callable[[], object]] = {"pyro_ext": lambda: ours(vectors)}
    from curvlinops import GGNLinearOperator

    vector, loss = each.in_module_order(each.vector), nn.MSELoss(reduction="sum")

    def peer(particle: int) -> Tensor:
        each.load(particle)
        parameters: Any = list(each.module.parameters())
        operator = GGNLinearOperator(
            each.module, loss, parameters, [(each.x, each.y)], check_deterministic=False
        )
        # Its loss is the sum of squares, and minus the log likelihood half of that.
        found: Tensor = 0.5 * (operator @ vector)
        return found

    cases["curvlinops"] = lambda: [peer(particle) for particle in range(len(each.z))]
    expected = torch.stack([each.in_module_order(product) for product in ours(vectors)])
    found = torch.stack([peer(particle) for particle in range(len(each.z))])
    return cases, {"largest difference": float((found - expected).abs().max())}


def matrices(each: Network) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """Ways to the posterior precision of one particle, and how far the peer's is from ours."""

    def ours() -> Tensor:
        return each.curvature.at(each.target, each.z[:1], each.data, None).dense()[0]

    from laplace import FullLaplace
    from torch.utils.data import DataLoader, TensorDataset

    def peer() -> Tensor:
        laplace: Any = FullLaplace(each.module, "regression", sigma_noise=1.0, prior_precision=1.0)
        laplace.fit(DataLoader(TensorDataset(each.x, each.y), batch_size=network.BATCH))
        found: Tensor = laplace.posterior_precision
        return found

    each.load(0)
    order = each.in_module_order(torch.arange(each.target.dim)).long()
    difference = float((peer() - ours()[order][:, order]).abs().max())
    return {"pyro_ext": ours, "laplace-torch": peer}, {"largest difference": difference}
