"""Targets of the kernel comparison, written once for NumPy, JAX and torch.

A log density takes the array module `xp` (`numpy`, `jax.numpy` or `torch`), a point of shape (D,)
and the target's constants as arrays of that module, and uses only what the three share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from benchmarks.hosts import host_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """A density on R^D, up to a constant.

    Attributes
    ----------
    name : str
    dim : int
        D.
    log_density : callable
        Maps xp, a point (D,) and the constants to a number.
    constants : mapping of str to array
    moments : tuple of arrays, optional
        Mean (K,) and covariance (K, K) of the statistic; None where a long NUTS run gives them.
    statistic : callable
        Maps draws (S, D) to what is judged, (S, K); the draws themselves by default.
    steps : int
        Steps of a run.
    """

    name: str
    dim: int
    log_density: Callable[[Any, Any, Mapping[str, Any]], Any]
    constants: Mapping[str, Floats] = field(default_factory=dict)
    moments: tuple[Floats, Floats] | None = None
    statistic: Callable[[Floats], Floats] = lambda draws: draws
    steps: int = 2000

    def program(self, backend: str) -> Callable[[], None]:
        """The target as a program of a host, of one flat site `z`."""
        host = host_of(backend)
        constants = {name: host.array(value) for name, value in self.constants.items()}

        def program() -> None:
            z = host.flat("z", self.dim)
            host.factor("target", self.log_density(host.xp, z, constants))

        return program


def _autoregressive(dim: int, correlation: float, scales: Floats) -> Floats:
    lags = np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))
    return np.outer(scales, scales) * correlation**lags


def _normal(name: str, scales: Floats) -> Target:
    dim = len(scales)
    covariance = _autoregressive(dim, 0.76, scales)

    def log_density(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
        return -0.5 * (z @ c["precision"] @ z)

    constants = {"precision": np.linalg.inv(covariance).astype(np.float64)}
    return Target(name, dim, log_density, constants, (np.zeros(dim), covariance))


def _banana(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    return -0.5 * z[0] ** 2 - 0.5 * ((z[1] - 0.5 * z[0] ** 2) / 0.5) ** 2


def _log_gamma(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    return (2.0 * z - xp.exp(z)).sum()


def _rotated_log_gamma(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    return _log_gamma(xp, c["rotation"] @ z, c)


def _two_modes(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    left = math.log(0.3) - 0.5 * (z[0] + 2.5) ** 2
    right = math.log(0.7) - 0.5 * (z[0] - 2.5) ** 2
    return xp.logaddexp(left, right) - 0.5 * z[1] ** 2


def _funnel(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    return -0.5 * z[0] ** 2 - 0.5 * (z[1:] ** 2).sum() * xp.exp(-z[0]) - 2.0 * z[0]


def _student(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    return -5.0 * xp.log1p((z**2).sum() / 5.0)


def _eight_schools(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    # mu ~ N(0, 5), tau ~ HalfCauchy(5), theta = mu + tau t, t ~ N(0, 1); z holds mu, log tau, t.
    tau = xp.exp(z[1])
    prior = -0.5 * (z[0] / 5.0) ** 2 + z[1] - xp.log1p((tau / 5.0) ** 2) - 0.5 * (z[2:] ** 2).sum()
    effects = z[0] + tau * z[2:]
    return prior - 0.5 * (((c["effects"] - effects) / c["errors"]) ** 2).sum()


def _logistic(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    signed = c["signed"] @ z
    return -xp.logaddexp(signed * 0.0, -signed).sum() - 0.5 * (z**2).sum() / 4.0


HIDDEN = 10


def _network(xp: Any, z: Any, x: Any) -> Any:
    weights, biases = z[..., :HIDDEN, None], z[..., HIDDEN : 2 * HIDDEN, None]
    outputs = z[..., 2 * HIDDEN : 3 * HIDDEN, None]
    return (outputs * xp.tanh(weights * x + biases)).sum(-2) + z[..., 3 * HIDDEN, None]


def _regression(xp: Any, z: Any, c: Mapping[str, Any]) -> Any:
    errors = (c["y"] - _network(xp, z, c["x"])) / 0.1
    return -0.5 * (errors**2).sum() - 0.5 * (z**2).sum()


def _predictions(draws: Floats) -> Floats:
    predictions: Floats = _network(np, draws, np.linspace(-2.5, 2.5, 41))
    return predictions


def make_targets() -> dict[str, Target]:
    """All targets by name; what is random about them has a seed of its own."""
    generator = np.random.default_rng(0)
    log_gamma = float(digamma(2.0)), float(polygamma(1, 2.0))
    rotation = np.linalg.qr(generator.normal(size=(30, 30)))[0]
    features = (
        generator.normal(size=(200, 20))
        @ np.linalg.cholesky(_autoregressive(20, 0.6, np.ones(20))).T
    )
    chances = 1.0 / (1.0 + np.exp(-features @ generator.normal(size=20) * 0.7))
    signs = np.where(generator.random(200) < chances, 1.0, -1.0)
    x = np.sort(generator.uniform(-2.0, 2.0, 40))
    x = x[(x < -0.5) | (x > 0.7)]
    y = np.sin(2.0 * x) + 0.1 * generator.normal(size=len(x))
    targets = [
        _normal("Normal, D = 5", np.array([1.0, 0.5, 2.0, 1.0, 3.0])),
        _normal("Normal, D = 50", np.exp(0.5 * generator.normal(size=50))),
        Target("banana", 2, _banana, moments=(np.array([0.0, 0.5]), np.diag([1.0, 0.75]))),
        Target(
            "log-gamma",
            2,
            _log_gamma,
            moments=(np.full(2, log_gamma[0]), np.eye(2) * log_gamma[1]),
        ),
        Target(
            "log-gamma, D = 30",
            30,
            _rotated_log_gamma,
            {"rotation": rotation},
            (rotation.T @ np.full(30, log_gamma[0]), np.eye(30) * log_gamma[1]),
        ),
        Target("two modes", 2, _two_modes, moments=(np.array([1.0, 0.0]), np.diag([6.25, 1.0]))),
        Target(
            "funnel",
            5,
            _funnel,
            moments=(np.zeros(5), np.diag([1.0, *[math.exp(0.5)] * 4])),
        ),
        Target("Student t, D = 5", 5, _student, moments=(np.zeros(5), np.eye(5) * 5.0 / 3.0)),
        Target(
            "eight schools",
            10,
            _eight_schools,
            {
                "effects": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
                "errors": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
            },
        ),
        Target("logistic, D = 20", 20, _logistic, {"signed": features * signs[:, None]}),
        Target(
            "network, D = 31",
            3 * HIDDEN + 1,
            _regression,
            {"x": x, "y": y},
            statistic=_predictions,
            steps=10_000,
        ),
    ]
    return {target.name: target for target in targets}
