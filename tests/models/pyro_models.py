"""The model zoo in Pyro; data and moments are in ``zoo``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from tests.models import zoo

Model = Callable[..., Any]


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.get_default_dtype())


def conjugate_normal(y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def conjugate_normal_subsampled(y: Tensor, subsample_size: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


def gaussian_one_site() -> None:
    pyro.sample(
        "z",
        dist.MultivariateNormal(_tensor(zoo.GAUSSIAN_3D_MEAN), _tensor(zoo.GAUSSIAN_3D_COVARIANCE)),
    )


def gaussian_two_sites() -> None:
    mean, covariance = _tensor(zoo.GAUSSIAN_3D_MEAN), _tensor(zoo.GAUSSIAN_3D_COVARIANCE)
    weights, scale = zoo.conditional_gaussian()
    a = pyro.sample("a", dist.MultivariateNormal(mean[:2], covariance[:2, :2]))
    pyro.sample("b", dist.Normal(mean[2] + ((a - mean[:2]) * _tensor(weights)).sum(-1), scale))


def gaussian_five() -> None:
    pyro.sample(
        "z",
        dist.MultivariateNormal(_tensor(zoo.GAUSSIAN_5D_MEAN), _tensor(zoo.GAUSSIAN_5D_COVARIANCE)),
    )


def lognormal() -> None:
    pyro.sample("x", dist.LogNormal(0.0, 0.5))


def exponential() -> None:
    pyro.sample("x", dist.Exponential(_tensor(1.0)))


def dirichlet() -> None:
    pyro.sample("p", dist.Dirichlet(_tensor(zoo.DIRICHLET_CONCENTRATION)))


def lkj_cholesky() -> None:
    pyro.sample("L", dist.LKJCholesky(3, _tensor(zoo.LKJ_CONCENTRATION)))


def dependent_uniform() -> None:
    a = pyro.sample("a", dist.LogNormal(0.0, 0.5))
    pyro.sample("b", dist.Uniform(0.0, a))


def gamma_poisson(counts: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(_tensor(2.0), _tensor(0.5)))
    with pyro.plate("N", len(counts)):
        pyro.sample("counts", dist.Poisson(rate), obs=counts)


def nested_plates(y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    with pyro.plate("groups", y.shape[1], dim=-1):
        theta = pyro.sample("theta", dist.Normal(mu, 1.0))
        with pyro.plate("rows", y.shape[0], dim=-2):
            pyro.sample("y", dist.Normal(theta, 0.7), obs=y)


def nested_plates_subsampled(
    y: Tensor, row_subsample_size: int | None = None, column_subsample_size: int | None = None
) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    column_plate = pyro.plate("columns", y.shape[1], subsample_size=column_subsample_size, dim=-1)
    row_plate = pyro.plate("rows", y.shape[0], subsample_size=row_subsample_size, dim=-2)
    with column_plate as columns, row_plate as rows:
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows][:, columns])


def masked_observations(y: Tensor, mask: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y)), poutine.mask(mask=mask):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scaled_observations(y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y)), poutine.scale(scale=0.25):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scaled_latent(y: Tensor) -> None:
    with poutine.scale(scale=0.5):
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    with pyro.plate("N", len(y)):
        pyro.sample("y", dist.Normal(0.0, s), obs=y)


def factor_outside_plate() -> None:
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    pyro.factor("f", -2.0 * (z - 1.0) ** 2)


def factor_in_plate(y: Tensor, subsample_size: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        pyro.factor("f", -0.5 * (y[rows] - mu) ** 2)


def deterministic(y: Tensor, subsample_size: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    pyro.deterministic("twice", 2.0 * mu)
    with pyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        pyro.deterministic("residual", y[rows] - mu)
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


def eight_schools_centered(error: Tensor, effect: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(_tensor(5.0)))
    with pyro.plate("schools", len(error)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("effect", dist.Normal(theta, error), obs=effect)


def eight_schools_noncentered(error: Tensor, effect: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(_tensor(5.0)))
    with pyro.plate("schools", len(error)):
        base = pyro.sample("theta_base", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * base)
        pyro.sample("effect", dist.Normal(theta, error), obs=effect)


def _coefficients() -> tuple[Tensor, Tensor]:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    return w, pyro.sample("b", dist.Normal(0.0, 2.0))


def logistic_regression(x: Tensor, y: Tensor) -> None:
    w, b = _coefficients()
    with pyro.plate("N", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def logistic_regression_subsampled(x: Tensor, y: Tensor, subsample_size: int | None = None) -> None:
    w, b = _coefficients()
    with pyro.plate("N", len(x), subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.Bernoulli(logits=x[rows] @ w + b), obs=y[rows])


def logistic_regression_batch_arguments(x: Tensor, y: Tensor) -> None:
    w, b = _coefficients()
    with pyro.plate("N", 60, subsample_size=len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def local_latents(y: Tensor, subsample_size: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=subsample_size) as rows:
        z = pyro.sample("z", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(z, 0.5), obs=y[rows])


def local_positive_latents(counts: Tensor, subsample_size: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("N", len(counts), subsample_size=subsample_size) as rows:
        rate = pyro.sample("rate", dist.LogNormal(mu, 1.0))
        pyro.sample("counts", dist.Poisson(rate), obs=counts[rows])


def zero_inflated_poisson(counts: Tensor) -> None:
    gate = pyro.sample("gate", dist.Beta(_tensor(2.0), _tensor(2.0)))
    rate = pyro.sample("rate", dist.Gamma(_tensor(2.0), _tensor(0.5)))
    with pyro.plate("N", len(counts)):
        pyro.sample("counts", dist.ZeroInflatedPoisson(rate, gate=gate), obs=counts)


def _normal_weights(module: nn.Module) -> None:
    """Give every parameter of a PyroModule a standard normal prior, in place."""
    for child in list(module.modules()):
        for name, value in list(child.named_parameters(recurse=False)):
            prior = dist.Normal(torch.zeros(value.shape), 1.0).to_event(value.dim())
            setattr(child, name, PyroSample(prior))


class RegressionNetwork(PyroModule):
    """Two layers of ``PyroModule[nn.Linear]`` with standard normal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = PyroModule[nn.Linear](2, 4)
        self.fc2 = PyroModule[nn.Linear](4, 1)
        _normal_weights(self)

    def forward(
        self, x: Tensor, y: Tensor | None = None, subsample_size: int | None = None
    ) -> None:
        # The weights are drawn layer by layer, and outside the plate.
        plate = pyro.plate("N", len(x), subsample_size=subsample_size)
        with plate as rows:
            batch = x[rows]
        mean = self.fc2(torch.tanh(self.fc1(batch))).squeeze(-1)
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
        with plate:
            pyro.sample("y", dist.Normal(mean, sigma), obs=None if y is None else y[rows])


class ConvolutionNetwork(PyroModule):
    """A one-dimensional convolution made Bayesian with ``to_pyro_module_``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(10, 1))
        to_pyro_module_(self.body)
        _normal_weights(self.body)

    def forward(self, x: Tensor, y: Tensor) -> None:
        mean = self.body(x).squeeze(-1)
        with pyro.plate("N", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


class RecurrentNetwork(PyroModule):
    """A GRU and a linear readout of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = PyroModule[nn.GRU](1, 2, batch_first=True)
        self.readout = PyroModule[nn.Linear](2, 1)
        _normal_weights(self)

    def forward(self, x: Tensor, y: Tensor) -> None:
        states, _ = self.recurrent(x.transpose(-1, -2))
        mean = self.readout(states[..., -1, :]).squeeze(-1)
        with pyro.plate("N", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


_NETWORKS: dict[str, Callable[[], Model]] = {
    "bnn": RegressionNetwork,
    "convolution": ConvolutionNetwork,
    "recurrent": RecurrentNetwork,
}


def build(name: str) -> Model:
    """The model called ``name``; a network is built anew, in the default dtype."""
    if name in _NETWORKS:
        return _NETWORKS[name]()
    model: Model = globals()[name]
    return model


def arguments(name: str, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """The model's positional arguments as tensors; floats in ``dtype`` or the default one."""
    dtype = dtype or torch.get_default_dtype()

    def convert(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value.copy())
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tuple(convert(value) for value in zoo.ZOO[name].data())
