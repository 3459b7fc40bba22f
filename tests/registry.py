"""One row for each public engine: how it is made in each package, and what it claims.

``test_registry.py`` runs every row on every model that it claims, in both packages, and fails when
a public engine has no row. What a row allows beyond Monte Carlo error is the bias of the method
itself, and is said beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.backends import backend_of
from tests.stein_support import optimizer

#: Models whose posterior is Normal in unconstrained space.
NORMAL = (
    "conjugate_normal",
    "gaussian_two_sites",
    "gaussian_five",
    "lognormal",
    "nested_plates",
    "masked_observations",
    "scaled_observations",
)
#: The same, with minibatches that the model draws.
NORMAL_BY_MINIBATCH = ("conjugate_normal_subsampled",)
#: Models with other posteriors.
SKEWED = ("gamma_poisson", "exponential", "dirichlet", "dependent_uniform", "logistic_regression")


@dataclass(frozen=True)
class Row:
    """One way of using a public engine.

    Parameters
    ----------
    engine : str
        Public name, the same in both packages.
    options : callable
        Backend, model and number of steps to the engine's options.
    steps : int
        Steps of a run.
    bias : dict of str to (float, float)
        For each model that the row claims, the bias allowed in the mean, in posterior standard
        deviations, and in the standard deviation, relative.
    draws : int or None
        Draws to ask for; None for particles, which are not random given the start.
    spread : bool
        False for point estimates, whose standard deviation must be near zero.
    """

    engine: str
    options: Callable[[Any, Any, int], dict[str, Any]]
    steps: int
    bias: dict[str, tuple[float, float]]
    draws: int | None = None
    spread: bool = True

    def made(self, package: str, model: Any, steps: int) -> Any:
        """The engine of a package, for so many steps."""
        backend = backend_of(package)
        options = {"seed": 0} if backend.is_pyro else {}
        options |= self.options(backend, model, steps)
        return getattr(backend.public, self.engine)(model, **options)


def adam(backend: Any, rate: float, steps: int) -> Any:
    """Adam whose rate falls along a cosine."""
    return optimizer(backend, "adam", rate, steps=steps, cosine=True)


def particles(backend: Any, model: Any, steps: int, **options: Any) -> dict[str, Any]:
    """Fifty that follow the optimizer."""
    given = {"optim": adam(backend, 0.3, steps), "num_particles": 50}
    return {**given, **options}


def repulsive(backend: Any, model: Any, steps: int) -> dict[str, Any]:
    """Fifty with a narrow kernel."""
    kernel = backend.public.RBF(0.2, metric="variance")
    return particles(backend, model, steps, optim=adam(backend, 0.1, steps), kernel=kernel)


def proximal(backend: Any, model: Any, steps: int, solver: str) -> dict[str, Any]:
    """A full-rank guide by one of the solvers."""
    return {"guide": backend.autoguide.AutoMultivariateNormal(model), "solver": solver}


def fisher(backend: Any, model: Any, steps: int, norm: str) -> dict[str, Any]:
    """A full-rank guide by one of the norms."""
    # Not narrower than the posteriors: see the engine's notes on the start.
    guide = backend.autoguide.AutoMultivariateNormal(model, init_scale=1.0)
    return {"guide": guide, "optim": adam(backend, 0.1, steps), "norm": norm, "num_samples": 4}


#: NumPyro's start is 20 standard deviations from "gaussian_two_sites", along a narrow direction,
#: where GSM and BaM hardly move, unless BaM's weight stays large.
NEAR_NORMAL = tuple(name for name in NORMAL if name != "gaussian_two_sites")

REGISTRY = {
    "SVGD": Row(
        "SVGD",
        particles,
        2500,
        # The linear term of the default kernel brings mean and covariance of Normal posteriors
        # near; a fixed point balances it with the radial one, and there is what the optimizer
        # leaves. Elsewhere fifty particles stand for the whole posterior.
        bias={
            **dict.fromkeys(NORMAL, (0.02, 0.02)),
            # A step's noise shakes all particles together; the decaying rate averages it.
            **dict.fromkeys(NORMAL_BY_MINIBATCH, (0.15, 0.1)),
            "local_latents": (0.1, 0.1),
            **dict.fromkeys(SKEWED, (0.05, 0.05)),
        },
    ),
    "SVGDVR": Row(
        "SVGDVR",
        partial(particles, anchor_every=8),
        2500,
        # Nearly as exact as with all rows: what noise is left falls with the rate.
        bias=dict.fromkeys(NORMAL_BY_MINIBATCH, (0.03, 0.05)),
    ),
    "SVN": Row(
        "SVN",
        lambda backend, model, steps: {"num_particles": 50},
        30,
        # As SVGD with the same kernel: mean and covariance are nearly right for Normal posteriors.
        bias={
            **dict.fromkeys(
                ("conjugate_normal", "gaussian_two_sites", "gaussian_five", "nested_plates"),
                (0.02, 0.05),
            ),
            # Its moments are those of the exponential of fifty particles.
            "lognormal": (0.05, 0.2),
            **dict.fromkeys(("gamma_poisson", "dirichlet", "logistic_regression"), (0.15, 0.2)),
        },
    ),
    "SVN, block diagonal": Row(
        "SVN",
        lambda backend, model, steps: {"num_particles": 50, "system": "block_diagonal"},
        30,
        # Its radial kernel loses a part of the spread.
        bias={
            "gaussian_five": (0.05, 0.15),
            **dict.fromkeys(("gamma_poisson", "logistic_regression"), (0.15, 0.2)),
        },
    ),
    "WGD": Row(
        "WGD",
        repulsive,
        2500,
        # The density estimate has the target's variance, of which the kernel takes a part: the
        # particles' is 1 / 1.1 of it, and their standard deviation 0.953.
        bias={"conjugate_normal": (0.05, 0.1)},
    ),
    "DeepEnsemble": Row(
        "DeepEnsemble",
        lambda backend, model, steps: {"optim": adam(backend, 0.3, steps), "num_particles": 4},
        2500,
        # The mode in unconstrained space is the mean of a Normal posterior there.
        bias={"conjugate_normal": (0.02, 0.02), "gaussian_two_sites": (0.05, 0.05)},
        spread=False,
    ),
    "LaplaceGGN": Row(
        "LaplaceGGN",
        lambda backend, model, steps: {"optim": adam(backend, 0.3, steps)},
        1000,
        # Exact for Normal posteriors but for what the optimizer leaves. The mode of a Gamma's
        # logarithm is that of its mean, and the Gaussian has no skew.
        bias={
            **dict.fromkeys(("gaussian_five", "scaled_observations"), (0.02, 0.02)),
            "gamma_poisson": (0.15, 0.2),
        },
        draws=4000,
    ),
    "ProximalScoreVI, regression": Row(
        "ProximalScoreVI",
        partial(proximal, solver="regression"),
        1500,
        # Exact for Normal posteriors, without noise; a Normal guide cannot be skewed.
        bias={
            **dict.fromkeys(NORMAL, (0.0, 0.0)),
            **dict.fromkeys(NORMAL_BY_MINIBATCH, (0.15, 0.15)),
            **dict.fromkeys(SKEWED, (0.15, 0.2)),
            # log x of an Exponential has score 1 - exp(z), for which E_q[score] = 0 and
            # E_q[-score'] = P give P = 1 and m = -1/2: 0.78 of the true standard deviation.
            "exponential": (0.15, 0.22),
        },
        draws=4000,
    ),
    "ProximalScoreVI, gradient": Row(
        "ProximalScoreVI",
        partial(proximal, solver="gradient"),
        2000,
        bias={"conjugate_normal": (0.02, 0.02), "gaussian_five": (0.02, 0.02)},
        draws=4000,
    ),
    "GSM": Row(
        "GSM",
        lambda backend, model, steps: {},
        400,
        # Exact for Normal posteriors; elsewhere it does not settle, and claims nothing.
        bias=dict.fromkeys(NEAR_NORMAL, (0.0, 0.0)),
        draws=4000,
    ),
    "BaM": Row(
        "BaM",
        lambda backend, model, steps: {},
        400,
        # The same, but it settles. Scores of an Exponential have tails too heavy for its batches.
        bias={
            **dict.fromkeys(NEAR_NORMAL, (0.0, 0.0)),
            **{name: (0.15, 0.2) for name in SKEWED if name != "exponential"},
        },
        draws=4000,
    ),
    "BaM, constant weight": Row(
        "BaM",
        lambda backend, model, steps: {"regularization": 24.0},
        400,
        bias={"gaussian_two_sites": (0.0, 0.0)},
        draws=4000,
    ),
    "FisherVI, euclidean": Row(
        "FisherVI",
        partial(fisher, norm="euclidean"),
        800,
        bias={"conjugate_normal": (0.02, 0.02), "lognormal": (0.02, 0.02)},
        draws=4000,
    ),
    "FisherVI, covariance": Row(
        "FisherVI",
        partial(fisher, norm="covariance"),
        800,
        bias={"conjugate_normal": (0.02, 0.02), "lognormal": (0.02, 0.02)},
        draws=4000,
    ),
    "SteinDiscrepancyVI": Row(
        "SteinDiscrepancyVI",
        lambda backend, model, steps: {},
        800,
        # A network is an exact map of a Normal's start; what is left is the optimizer's noise,
        # which is large in the tails after so few steps with 100 draws.
        bias={"conjugate_normal": (0.05, 0.1)},
        draws=4000,
    ),
}
