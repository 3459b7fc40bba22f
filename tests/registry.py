"""One row for each public engine: how it is made in each package, and what it claims.

``test_registry.py`` runs every row on every model that it claims, in both packages, and fails when
a public engine has no row. What a row allows beyond Monte Carlo error is the bias of the method
itself, and is said beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    pyro, numpyro : callable
        Model and number of steps to an engine.
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
    pyro: Callable[[Any, int], Any]
    numpyro: Callable[[Any, int], Any]
    steps: int
    bias: dict[str, tuple[float, float]]
    draws: int | None = None
    spread: bool = True


def _pyro_adam(rate: float, steps: int) -> Any:
    import torch
    from pyro.optim import CosineAnnealingLR

    return CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}, "T_max": steps}
    )


def _numpyro_adam(rate: float, steps: int) -> Any:
    import optax

    return optax.adam(optax.cosine_decay_schedule(rate, steps))


def _pyro_svgd(model: Any, steps: int) -> Any:
    import pyro_ext as px

    kernel = px.RBF() + px.Linear()
    return px.SVGD(model, _pyro_adam(0.3, steps), kernel, 50, seed=0)


def _numpyro_svgd(model: Any, steps: int) -> Any:
    import numpyro_ext as nx

    return nx.SVGD(model, _numpyro_adam(0.3, steps), nx.RBF() + nx.Linear(), 50)


def _pyro_svgd_vr(model: Any, steps: int) -> Any:
    import pyro_ext as px

    kernel = px.RBF() + px.Linear()
    return px.SVGDVR(model, _pyro_adam(0.3, steps), kernel, 50, anchor_every=8, seed=0)


def _numpyro_svgd_vr(model: Any, steps: int) -> Any:
    import numpyro_ext as nx

    kernel = nx.RBF() + nx.Linear()
    return nx.SVGDVR(model, _numpyro_adam(0.3, steps), kernel, 50, anchor_every=8)


def _pyro_svn(model: Any, steps: int) -> Any:
    import pyro_ext as px

    return px.SVN(model, num_particles=50, seed=0)


def _numpyro_svn(model: Any, steps: int) -> Any:
    import numpyro_ext as nx

    return nx.SVN(model, num_particles=50)


def _pyro_wgd(model: Any, steps: int) -> Any:
    import pyro_ext as px

    return px.WGD(model, _pyro_adam(0.1, steps), px.RBF(0.2, metric="variance"), 50, seed=0)


def _numpyro_wgd(model: Any, steps: int) -> Any:
    import numpyro_ext as nx

    return nx.WGD(model, _numpyro_adam(0.1, steps), nx.RBF(0.2, metric="variance"), 50)


def _pyro_ensemble(model: Any, steps: int) -> Any:
    import pyro_ext as px

    return px.DeepEnsemble(model, _pyro_adam(0.3, steps), num_particles=4, seed=0)


def _numpyro_ensemble(model: Any, steps: int) -> Any:
    import numpyro_ext as nx

    return nx.DeepEnsemble(model, _numpyro_adam(0.3, steps), num_particles=4)


def _pyro_laplace(model: Any, steps: int) -> Any:
    import pyro_ext as px

    return px.LaplaceGGN(model, _pyro_adam(0.3, steps), seed=0)


def _numpyro_laplace(model: Any, steps: int) -> Any:
    import numpyro_ext as nx

    return nx.LaplaceGGN(model, _numpyro_adam(0.3, steps))


def _pyro_proximal(solver: str) -> Callable[[Any, int], Any]:
    def make(model: Any, steps: int) -> Any:
        from pyro.infer.autoguide import AutoMultivariateNormal

        import pyro_ext as px

        guide = AutoMultivariateNormal(model)
        return px.ProximalScoreVI(model, guide, solver=solver, seed=0)

    return make


def _numpyro_proximal(solver: str) -> Callable[[Any, int], Any]:
    def make(model: Any, steps: int) -> Any:
        from numpyro.infer.autoguide import AutoMultivariateNormal

        import numpyro_ext as nx

        return nx.ProximalScoreVI(model, AutoMultivariateNormal(model), solver=solver)

    return make


#: NumPyro's start is 20 standard deviations from "gaussian_two_sites", along a narrow direction,
#: where GSM and BaM hardly move, unless BaM's weight stays large.
NEAR_NORMAL = tuple(name for name in NORMAL if name != "gaussian_two_sites")


def _pyro_matching(name: str, **options: Any) -> Callable[[Any, int], Any]:
    def make(model: Any, steps: int) -> Any:
        import pyro_ext as px

        return getattr(px, name)(model, seed=0, **options)

    return make


def _numpyro_matching(name: str, **options: Any) -> Callable[[Any, int], Any]:
    def make(model: Any, steps: int) -> Any:
        import numpyro_ext as nx

        return getattr(nx, name)(model, **options)

    return make


def _pyro_fisher(norm: str) -> Callable[[Any, int], Any]:
    def make(model: Any, steps: int) -> Any:
        from pyro.infer.autoguide import AutoMultivariateNormal

        import pyro_ext as px

        # Not narrower than the posteriors: see the engine's notes on the start.
        guide = AutoMultivariateNormal(model, init_scale=1.0)
        return px.FisherVI(model, guide, _pyro_adam(0.1, steps), norm, num_samples=4, seed=0)

    return make


def _numpyro_fisher(norm: str) -> Callable[[Any, int], Any]:
    def make(model: Any, steps: int) -> Any:
        from numpyro.infer.autoguide import AutoMultivariateNormal

        import numpyro_ext as nx

        guide = AutoMultivariateNormal(model, init_scale=1.0)
        return nx.FisherVI(model, guide, _numpyro_adam(0.1, steps), norm, num_samples=4)

    return make


REGISTRY = {
    "SVGD": Row(
        "SVGD",
        _pyro_svgd,
        _numpyro_svgd,
        2500,
        # The linear term makes mean and covariance exact for Normal posteriors; the rest is what
        # the optimizer leaves. Elsewhere fifty particles stand for the whole posterior.
        bias={
            **dict.fromkeys(NORMAL, (0.02, 0.05)),
            # A step's noise shakes all particles together; the decaying rate averages it.
            **dict.fromkeys(NORMAL_BY_MINIBATCH, (0.15, 0.1)),
            "local_latents": (0.3, 0.25),
            **dict.fromkeys(SKEWED, (0.15, 0.2)),
        },
    ),
    "SVGDVR": Row(
        "SVGDVR",
        _pyro_svgd_vr,
        _numpyro_svgd_vr,
        2500,
        # Nearly as exact as with all rows: what noise is left falls with the rate.
        bias=dict.fromkeys(NORMAL_BY_MINIBATCH, (0.03, 0.05)),
    ),
    "SVN": Row(
        "SVN",
        _pyro_svn,
        _numpyro_svn,
        30,
        # As SVGD with the same kernel: mean and covariance are exact for Normal posteriors.
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
    "WGD": Row(
        "WGD",
        _pyro_wgd,
        _numpyro_wgd,
        2500,
        # The density estimate has the target's variance, of which the kernel takes a part: the
        # particles' is 1 / 1.1 of it, and their standard deviation 0.953.
        bias={"conjugate_normal": (0.05, 0.1)},
    ),
    "DeepEnsemble": Row(
        "DeepEnsemble",
        _pyro_ensemble,
        _numpyro_ensemble,
        2500,
        # The mode in unconstrained space is the mean of a Normal posterior there.
        bias={"conjugate_normal": (0.02, 0.02), "gaussian_two_sites": (0.05, 0.05)},
        spread=False,
    ),
    "LaplaceGGN": Row(
        "LaplaceGGN",
        _pyro_laplace,
        _numpyro_laplace,
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
        _pyro_proximal("regression"),
        _numpyro_proximal("regression"),
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
        _pyro_proximal("gradient"),
        _numpyro_proximal("gradient"),
        2000,
        bias={"conjugate_normal": (0.02, 0.02), "gaussian_five": (0.02, 0.02)},
        draws=4000,
    ),
    "GSM": Row(
        "GSM",
        _pyro_matching("GSM"),
        _numpyro_matching("GSM"),
        400,
        # Exact for Normal posteriors; elsewhere it does not settle, and claims nothing.
        bias=dict.fromkeys(NEAR_NORMAL, (0.0, 0.0)),
        draws=4000,
    ),
    "BaM": Row(
        "BaM",
        _pyro_matching("BaM"),
        _numpyro_matching("BaM"),
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
        _pyro_matching("BaM", regularization=24.0),
        _numpyro_matching("BaM", regularization=24.0),
        400,
        bias={"gaussian_two_sites": (0.0, 0.0)},
        draws=4000,
    ),
    "FisherVI, euclidean": Row(
        "FisherVI",
        _pyro_fisher("euclidean"),
        _numpyro_fisher("euclidean"),
        800,
        bias={"conjugate_normal": (0.02, 0.02), "lognormal": (0.02, 0.02)},
        draws=4000,
    ),
    "FisherVI, covariance": Row(
        "FisherVI",
        _pyro_fisher("covariance"),
        _numpyro_fisher("covariance"),
        800,
        bias={"conjugate_normal": (0.02, 0.02), "lognormal": (0.02, 0.02)},
        draws=4000,
    ),
}
