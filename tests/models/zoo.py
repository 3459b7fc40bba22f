"""The model zoo without its hosts: data, posterior moments and capabilities of every model.

``pyro_models`` and ``numpyro_models`` write each model once in its host's language; this file
holds what the two have in common. Data come from fixed NumPy seeds. Moments are exact where
the posterior is known in closed form or by a low-dimensional quadrature, and otherwise come
from importance sampling with an error that is stated. Nothing here imports a host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

Array = NDArray[Any]
Draws = Mapping[str, Array]


@dataclass(frozen=True)
class Moment:
    """Posterior mean and standard deviation of one statistic of the draws.

    Parameters
    ----------
    name : str
        What the statistic is.
    statistic : callable
        Maps draws (site -> array with draws first) to an array (draws, ...).
    mean, std : array
        Moments of the statistic under the posterior.
    error : float
        Relative error of the reference itself, in units of ``std``; 0 when exact.
    """

    name: str
    statistic: Callable[[Draws], Array]
    mean: Array
    std: Array
    error: float = 0.0


def of_site(site: str, mean: Any, std: Any, error: float = 0.0) -> Moment:
    """Moments of a latent site itself."""
    return Moment(
        site, lambda draws: np.asarray(draws[site]), np.asarray(mean), np.asarray(std), error
    )


@dataclass(frozen=True)
class Plate:
    """One subsampled plate of a model: its full size and the size of a minibatch."""

    size: int
    subsample_size: int


@dataclass(frozen=True)
class ZooModel:
    """One model of the zoo, without its host.

    Parameters
    ----------
    name : str
        Key of the model in both hosts' tables.
    data : callable
        Returns the positional arguments as NumPy arrays or Python scalars.
    latents : dict of str to tuple of int
        Constrained shape of every latent site at full length, in trace order. Networks list
        Pyro's names; ``numpyro_names`` translates them.
    moments : callable
        Returns the known posterior moments; an empty tuple when none are known.
    options : dict
        Keyword arguments for the model as an engine sees it (minibatches).
    full_options : dict
        Keyword arguments for the same model on all rows at once.
    plates : dict of str to Plate
        Subsampled plates.
    local_sites : tuple of str
        Latents inside a subsampled plate.
    batch_arguments : bool
        The plate is smaller than its size because a batch is passed as arguments.
    hosts : tuple of str
        Hosts in which the model exists.
    network : bool
        A neural network with priors over its weights.
    dependent_support : bool
        The support of a site depends on another latent.
    same_transform : bool
        Both hosts use the same bijection to unconstrained space, so that flat vectors mean
        the same; ``transform_note`` says why when not.
    pyro_potential, numpyro_potential : bool
        The host's own potential function is right for the model on all rows;
        ``potential_note`` says why when not.
    numpyro_names : dict of str to (str, tuple of int)
        NumPyro's name of a site and the axes that transpose Pyro's value into NumPyro's.
    """

    name: str
    data: Callable[[], tuple[Any, ...]]
    latents: dict[str, tuple[int, ...]]
    moments: Callable[[], tuple[Moment, ...]] = tuple
    options: dict[str, Any] = field(default_factory=dict)
    full_options: dict[str, Any] = field(default_factory=dict)
    plates: dict[str, Plate] = field(default_factory=dict)
    local_sites: tuple[str, ...] = ()
    batch_arguments: bool = False
    hosts: tuple[str, ...] = ("pyro", "numpyro")
    network: bool = False
    dependent_support: bool = False
    same_transform: bool = True
    transform_note: str = ""
    pyro_potential: bool = True
    numpyro_potential: bool = True
    potential_note: str = ""
    numpyro_names: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def subsampled(self) -> bool:
        """Whether the model draws minibatches itself."""
        return bool(self.plates)


# ---------------------------------------------------------------------------------------------
# Data


@cache
def normal_rows() -> Array:
    """(12,) observations of a normal mean."""
    return np.random.default_rng(1).normal(1.5, 1.0, 12)


@cache
def normal_mask() -> Array:
    """(12,) mask that keeps seven of the observations."""
    return np.array([1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1], dtype=bool)


@cache
def counts() -> Array:
    """(10,) Poisson counts."""
    return np.random.default_rng(2).poisson(3.0, 10).astype(float)


@cache
def inflated_counts() -> Array:
    """(40,) counts with more zeros than a Poisson distribution has."""
    generator = np.random.default_rng(3)
    return np.where(generator.random(40) < 0.4, 0, generator.poisson(2.5, 40)).astype(float)


@cache
def grouped_rows() -> Array:
    """(6, 4) observations: six rows in each of four groups."""
    generator = np.random.default_rng(4)
    return generator.normal(0.8, 1.0, 4) + generator.normal(0.0, 0.7, (6, 4))


@cache
def crossed_rows() -> Array:
    """(9, 8) observations under two crossed plates."""
    return np.random.default_rng(5).normal(0.6, 1.0, (9, 8))


SCHOOLS_EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS_ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@cache
def classified_rows() -> tuple[Array, Array]:
    """(60, 3) inputs and (60,) labels in {0, 1} of a logistic regression."""
    generator = np.random.default_rng(6)
    inputs = generator.normal(size=(60, 3)) * np.array([1.0, 0.5, 2.0])
    logits = inputs @ np.array([1.0, -1.5, 0.4]) + 0.5
    return inputs, (generator.random(60) < special.expit(logits)).astype(float)


@cache
def local_rows() -> Array:
    """(10,) observations of row effects."""
    generator = np.random.default_rng(7)
    return generator.normal(2.0, 1.0, 10) + generator.normal(0.0, 0.5, 10)


@cache
def regression_rows() -> tuple[Array, Array]:
    """(24, 2) inputs and (24,) responses of a smooth function with noise."""
    generator = np.random.default_rng(8)
    inputs = generator.uniform(-2.0, 2.0, (24, 2))
    response = np.sin(inputs[:, 0]) + 0.5 * inputs[:, 1] + generator.normal(0.0, 0.1, 24)
    return inputs, response


@cache
def sequence_rows() -> tuple[Array, Array]:
    """(12, 1, 7) input sequences and (12,) responses."""
    generator = np.random.default_rng(9)
    inputs = generator.normal(size=(12, 1, 7))
    return inputs, inputs[:, 0].mean(-1) + generator.normal(0.0, 0.1, 12)


@cache
def series() -> Array:
    """(15,) noisy observations of an autoregressive process of order one."""
    generator = np.random.default_rng(10)
    state, rows = 0.0, []
    for _ in range(15):
        state = 0.8 * state + generator.normal(0.0, AR_STATE_STD)
        rows.append(state + generator.normal(0.0, AR_NOISE_STD))
    return np.array(rows)


AR_STATE_STD = 0.5
AR_NOISE_STD = 0.25


# ---------------------------------------------------------------------------------------------
# Gaussian targets

# Mean 0, 0, 20 and correlation 0.9, the case that host SVGD drivers get wrong across sites.
GAUSSIAN_3D_MEAN = np.array([0.0, 0.0, 20.0])
GAUSSIAN_3D_COVARIANCE = 0.9 * np.ones((3, 3)) + 0.1 * np.eye(3)

GAUSSIAN_5D_MEAN = np.array([1.0, -2.0, 0.0, 3.0, -0.5])
_FACTOR_5D = np.array(
    [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0, 0.0],
        [-1.0, 0.25, 1.5, 0.0, 0.0],
        [0.25, -0.5, 0.0, 0.75, 0.0],
        [2.0, 0.0, -0.5, 0.25, 0.5],
    ]
)
GAUSSIAN_5D_COVARIANCE = _FACTOR_5D @ _FACTOR_5D.T


def conditional_gaussian() -> tuple[Array, float]:
    """Weights and standard deviation of the third coordinate given the first two."""
    covariance = GAUSSIAN_3D_COVARIANCE
    weights = np.linalg.solve(covariance[:2, :2], covariance[:2, 2])
    return weights, float(np.sqrt(covariance[2, 2] - covariance[2, :2] @ weights))


def gaussian_posterior(
    prior_mean: Array, prior_covariance: Array, design: Array, noise: Array, rows: Array
) -> tuple[Array, Array, float]:
    """Posterior mean and covariance of a linear Gaussian model, and its log evidence.

    ``rows = design @ z + e`` with z ~ N(prior_mean, prior_covariance), e ~ N(0, diag(noise**2)).
    """
    marginal = design @ prior_covariance @ design.T + np.diag(noise**2)
    gain = np.linalg.solve(marginal, design @ prior_covariance).T
    mean = prior_mean + gain @ (rows - design @ prior_mean)
    covariance = prior_covariance - gain @ design @ prior_covariance
    evidence = stats.multivariate_normal(design @ prior_mean, marginal).logpdf(rows)
    return mean, covariance, float(evidence)


def normal_mean_posterior(
    rows: Array, prior_std: float, weight: float = 1.0
) -> tuple[float, float]:
    """Mean and sd of a normal mean under N(0, prior_std) and unit noise, each row weighted."""
    precision = prior_std**-2 + weight * len(rows)
    return float(weight * rows.sum() / precision), float(precision**-0.5)


def _mixture_moments(log_weights: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean and sd of a mixture over the first axis of ``means`` and ``variances``."""
    weights = special.softmax(log_weights)
    mean = weights @ means
    return mean, np.sqrt(weights @ (variances + means**2) - mean**2)


# ---------------------------------------------------------------------------------------------
# Reference moments


def _conjugate(weight: float = 1.0) -> tuple[Moment, ...]:
    return (of_site("mu", *normal_mean_posterior(normal_rows(), 3.0, weight)),)


def _masked() -> tuple[Moment, ...]:
    return (of_site("mu", *normal_mean_posterior(normal_rows()[normal_mask()], 3.0)),)


def _gaussian_one_site() -> tuple[Moment, ...]:
    return (of_site("z", GAUSSIAN_3D_MEAN, np.ones(3)),)


def _gaussian_two_sites() -> tuple[Moment, ...]:
    return (of_site("a", GAUSSIAN_3D_MEAN[:2], np.ones(2)), of_site("b", 20.0, 1.0))


def _gaussian_five() -> tuple[Moment, ...]:
    return (of_site("z", GAUSSIAN_5D_MEAN, np.sqrt(np.diag(GAUSSIAN_5D_COVARIANCE))),)


def _lognormal() -> tuple[Moment, ...]:
    return (
        Moment("log x", lambda draws: np.log(draws["x"]), np.array(0.0), np.array(0.5)),
        of_site("x", stats.lognorm(0.5).mean(), stats.lognorm(0.5).std()),
    )


def _exponential() -> tuple[Moment, ...]:
    # log of a unit exponential: mean -Euler's constant, variance pi^2 / 6.
    return (
        of_site("x", 1.0, 1.0),
        Moment(
            "log x",
            lambda draws: np.log(draws["x"]),
            np.array(-np.euler_gamma),
            np.array(np.pi / np.sqrt(6.0)),
        ),
    )


DIRICHLET_CONCENTRATION = np.array([1.5, 3.0, 5.5])


def _dirichlet() -> tuple[Moment, ...]:
    posterior = stats.dirichlet(DIRICHLET_CONCENTRATION)
    return (of_site("p", posterior.mean(), np.sqrt(posterior.var())),)


LKJ_CONCENTRATION = 2.0


def _lkj() -> tuple[Moment, ...]:
    # Every correlation of an LKJ(eta) matrix of order d is 2 Beta(b, b) - 1, b = eta + (d-2)/2.
    shape = LKJ_CONCENTRATION + 0.5
    variance = 1.0 / (2.0 * shape + 1.0)

    def correlations(draws: Draws) -> Array:
        factor = np.asarray(draws["L"])
        matrix = factor @ np.swapaxes(factor, -1, -2)
        return np.stack([matrix[..., 1, 0], matrix[..., 2, 0], matrix[..., 2, 1]], -1)

    squared = stats.beta(shape, shape)
    fourth = 16.0 * squared.expect(lambda u: (u - 0.5) ** 4)
    return (
        Moment("correlations", correlations, np.zeros(3), np.full(3, variance**0.5)),
        Moment(
            "squared correlations",
            lambda draws: correlations(draws) ** 2,
            np.full(3, variance),
            np.full(3, np.sqrt(fourth - variance**2)),
        ),
    )


def _dependent_uniform() -> tuple[Moment, ...]:
    # a ~ LogNormal(0, 0.5), b | a ~ Uniform(0, a).
    first, second = np.exp(0.125), np.exp(0.5)
    return (
        of_site("a", first, np.sqrt(second - first**2)),
        of_site("b", first / 2.0, np.sqrt(second / 3.0 - first**2 / 4.0)),
        Moment("b / a", lambda draws: draws["b"] / draws["a"], np.array(0.5), np.array(12.0**-0.5)),
    )


def _gamma_poisson() -> tuple[Moment, ...]:
    posterior = stats.gamma(2.0 + counts().sum(), scale=1.0 / (0.5 + len(counts())))
    return (of_site("rate", posterior.mean(), posterior.std()),)


def _nested_plates() -> tuple[Moment, ...]:
    rows = grouped_rows()
    # Latents (mu, theta_1..4): mu ~ N(0, 2), theta_g ~ N(mu, 1), rows ~ N(theta_g, 0.7).
    prior = np.zeros((5, 5))
    prior[:, :] = 4.0
    prior[1:, 1:] += np.eye(4)
    design = np.zeros((rows.size, 5))
    design[np.arange(rows.size), 1 + np.tile(np.arange(4), 6)] = 1.0
    mean, covariance, _ = gaussian_posterior(
        np.zeros(5), prior, design, np.full(rows.size, 0.7), rows.reshape(-1)
    )
    std = np.sqrt(np.diag(covariance))
    return of_site("mu", mean[0], std[0]), of_site("theta", mean[1:], std[1:])


def _nested_subsampled() -> tuple[Moment, ...]:
    return (of_site("mu", *normal_mean_posterior(crossed_rows().reshape(-1), 1.0)),)


def _factor_outside() -> tuple[Moment, ...]:
    # N(0, 1) times exp(-2 (z - 1)^2): precision 5, mean 4/5.
    return (of_site("z", 0.8, 5.0**-0.5),)


def _local_latents() -> tuple[Moment, ...]:
    rows = local_rows()
    count = len(rows)
    prior = np.full((count + 1, count + 1), 9.0)
    prior[1:, 1:] += np.eye(count)
    design = np.hstack([np.zeros((count, 1)), np.eye(count)])
    mean, covariance, _ = gaussian_posterior(
        np.zeros(count + 1), prior, design, np.full(count, 0.5), rows
    )
    std = np.sqrt(np.diag(covariance))
    return of_site("mu", mean[0], std[0]), of_site("z", mean[1:], std[1:])


@cache
def eight_schools_moments() -> dict[str, tuple[Array, Array]]:
    """Mean and sd of mu, tau and theta: Gaussian given tau, then a quadrature over log tau."""
    nodes = np.linspace(np.log(1e-4), np.log(500.0), 4001)
    design = np.hstack([np.zeros((8, 1)), np.eye(8)])
    evidence, means, variances = [], [], []
    for tau in np.exp(nodes):
        prior = np.full((9, 9), 25.0)
        prior[1:, 1:] += tau**2 * np.eye(8)
        mean, covariance, log_evidence = gaussian_posterior(
            np.zeros(9), prior, design, SCHOOLS_ERROR, SCHOOLS_EFFECT
        )
        evidence.append(log_evidence)
        means.append(mean)
        variances.append(np.diag(covariance))
    # tau has density HalfCauchy(5); d tau = tau d log tau.
    log_weights = np.array(evidence) + stats.halfcauchy(scale=5.0).logpdf(np.exp(nodes)) + nodes
    mean, std = _mixture_moments(log_weights, np.array(means), np.array(variances))
    tau_mean, tau_std = _mixture_moments(
        log_weights, np.exp(nodes)[:, None], np.zeros((len(nodes), 1))
    )
    return {
        "mu": (mean[0], std[0]),
        "tau": (tau_mean[0], tau_std[0]),
        "theta": (mean[1:], std[1:]),
    }


def _schools_centered() -> tuple[Moment, ...]:
    return tuple(of_site(site, *pair) for site, pair in eight_schools_moments().items())


def _schools_noncentered() -> tuple[Moment, ...]:
    reference = eight_schools_moments()

    def theta(draws: Draws) -> Array:
        mu, tau = np.asarray(draws["mu"]), np.asarray(draws["tau"])
        return mu[..., None] + tau[..., None] * np.asarray(draws["theta_base"])

    return (
        of_site("mu", *reference["mu"]),
        of_site("tau", *reference["tau"]),
        Moment("theta", theta, *reference["theta"]),
    )


@cache
def logistic_moments() -> tuple[Array, Array, float]:
    """Mean, sd and error of (w_1..3, b) by importance sampling from a wide Laplace fit.

    200,000 draws of a t distribution with 8 degrees of freedom; the last value is the error
    of a mean in units of sd, from the effective sample size.
    """
    inputs, labels = classified_rows()
    design = np.hstack([inputs, np.ones((len(labels), 1))])
    scale = np.array([1.0, 1.0, 1.0, 2.0])

    def log_density(weights: Array) -> Array:
        logits = weights @ design.T
        likelihood = (labels * logits - np.logaddexp(0.0, logits)).sum(-1)
        return likelihood - 0.5 * ((weights / scale) ** 2).sum(-1)

    mode = optimize.minimize(lambda w: -log_density(w), np.zeros(4), method="BFGS").x
    probability = special.expit(design @ mode)
    hessian = (design.T * (probability * (1.0 - probability))) @ design + np.diag(scale**-2)
    proposal = stats.multivariate_t(mode, 1.2 * np.linalg.inv(hessian), df=8, seed=11)
    draws = proposal.rvs(200_000)
    weights = special.softmax(log_density(draws) - proposal.logpdf(draws))
    mean = weights @ draws
    std = np.sqrt(weights @ (draws - mean) ** 2)
    return mean, std, float(np.sqrt((weights**2).sum()))


def _logistic() -> tuple[Moment, ...]:
    mean, std, error = logistic_moments()
    return of_site("w", mean[:3], std[:3], error), of_site("b", mean[3], std[3], error)


@cache
def zero_inflated_moments() -> dict[str, tuple[float, float]]:
    """Mean and sd of gate ~ Beta(2, 2) and rate ~ Gamma(2, 1/2) by a two-dimensional grid."""
    rows = inflated_counts()
    gate = (np.arange(2000) + 0.5) / 2000.0
    rate = (np.arange(3000) + 0.5) * 12.0 / 3000.0
    zeros, total = int((rows == 0).sum()), rows[rows > 0].sum()
    positive = int((rows > 0).sum())
    log_density = (
        zeros * np.log(gate[:, None] + (1.0 - gate[:, None]) * np.exp(-rate))
        + positive * (np.log1p(-gate[:, None]) - rate)
        + total * np.log(rate)
        + stats.beta(2.0, 2.0).logpdf(gate)[:, None]
        + stats.gamma(2.0, scale=2.0).logpdf(rate)
    )
    weights = special.softmax(log_density)
    result = {}
    for name, values, axis in (("gate", gate, 1), ("rate", rate, 0)):
        marginal = weights.sum(axis)
        mean = float(marginal @ values)
        result[name] = (mean, float(np.sqrt(marginal @ (values - mean) ** 2)))
    return result


def _zero_inflated() -> tuple[Moment, ...]:
    return tuple(of_site(site, *pair) for site, pair in zero_inflated_moments().items())


@cache
def autoregressive_moments() -> tuple[tuple[float, float], tuple[Array, Array]]:
    """Mean and sd of phi and of the states: Gaussian given phi, quadrature over (-1, 1)."""
    rows = series()
    count = len(rows)
    nodes = (np.arange(2000) + 0.5) / 1000.0 - 1.0
    evidence, means, variances = [], [], []
    for phi in nodes:
        steps = np.eye(count) - phi * np.eye(count, k=-1)
        precision = steps.T @ steps / AR_STATE_STD**2
        mean, covariance, log_evidence = gaussian_posterior(
            np.zeros(count),
            np.linalg.inv(precision),
            np.eye(count),
            np.full(count, AR_NOISE_STD),
            rows,
        )
        evidence.append(log_evidence)
        means.append(mean)
        variances.append(np.diag(covariance))
    log_weights = np.array(evidence)
    phi_mean, phi_std = _mixture_moments(log_weights, nodes[:, None], np.zeros((len(nodes), 1)))
    return (float(phi_mean[0]), float(phi_std[0])), _mixture_moments(
        log_weights, np.array(means), np.array(variances)
    )


def _autoregressive() -> tuple[Moment, ...]:
    phi, states = autoregressive_moments()
    return of_site("phi", *phi), of_site("x", *states)


# ---------------------------------------------------------------------------------------------
# The table

_SUBSAMPLE_NOTE = "the host's potential refuses subsampled plates, so it is given all rows"

_BNN_LATENTS = {
    "fc1.weight": (4, 2),
    "fc1.bias": (4,),
    "fc2.weight": (1, 4),
    "fc2.bias": (1,),
    "sigma": (),
}

_MODELS = (
    ZooModel("conjugate_normal", lambda: (normal_rows(),), {"mu": ()}, _conjugate),
    ZooModel(
        "conjugate_normal_subsampled",
        lambda: (normal_rows(),),
        {"mu": ()},
        _conjugate,
        options={"subsample_size": 5},
        full_options={"subsample_size": None},
        plates={"N": Plate(12, 5)},
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel("gaussian_one_site", tuple, {"z": (3,)}, _gaussian_one_site),
    ZooModel("gaussian_two_sites", tuple, {"a": (2,), "b": ()}, _gaussian_two_sites),
    ZooModel("gaussian_five", tuple, {"z": (5,)}, _gaussian_five),
    ZooModel("lognormal", tuple, {"x": ()}, _lognormal),
    ZooModel("exponential", tuple, {"x": ()}, _exponential),
    ZooModel("dirichlet", tuple, {"p": (3,)}, _dirichlet),
    ZooModel("lkj_cholesky", tuple, {"L": (3, 3)}, _lkj),
    ZooModel(
        "dependent_uniform",
        tuple,
        {"a": (), "b": ()},
        _dependent_uniform,
        dependent_support=True,
        pyro_potential=False,
        potential_note="Pyro's potential fixes the transform to the support of its first run",
    ),
    ZooModel("gamma_poisson", lambda: (counts(),), {"rate": ()}, _gamma_poisson),
    ZooModel("nested_plates", lambda: (grouped_rows(),), {"mu": (), "theta": (4,)}, _nested_plates),
    ZooModel(
        "nested_plates_subsampled",
        lambda: (crossed_rows(),),
        {"mu": ()},
        _nested_subsampled,
        options={"row_subsample_size": 3, "column_subsample_size": 2},
        full_options={"row_subsample_size": None, "column_subsample_size": None},
        plates={"columns": Plate(8, 2), "rows": Plate(9, 3)},
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel("masked_observations", lambda: (normal_rows(), normal_mask()), {"mu": ()}, _masked),
    ZooModel("scaled_observations", lambda: (normal_rows(),), {"mu": ()}, lambda: _conjugate(0.25)),
    ZooModel(
        "scaled_latent",
        lambda: (normal_rows(),),
        {"s": ()},
        numpyro_potential=False,
        potential_note="NumPyro's potential puts the Jacobian through the site's scale",
    ),
    ZooModel("factor_outside_plate", tuple, {"z": ()}, _factor_outside),
    ZooModel(
        "factor_in_plate",
        lambda: (normal_rows(),),
        {"mu": ()},
        _conjugate,
        options={"subsample_size": 4},
        full_options={"subsample_size": None},
        plates={"N": Plate(12, 4)},
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel(
        "deterministic",
        lambda: (normal_rows(),),
        {"mu": ()},
        _conjugate,
        options={"subsample_size": 5},
        full_options={"subsample_size": None},
        plates={"N": Plate(12, 5)},
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel(
        "eight_schools_centered",
        lambda: (SCHOOLS_ERROR, SCHOOLS_EFFECT),
        {"mu": (), "tau": (), "theta": (8,)},
        _schools_centered,
    ),
    ZooModel(
        "eight_schools_noncentered",
        lambda: (SCHOOLS_ERROR, SCHOOLS_EFFECT),
        {"mu": (), "tau": (), "theta_base": (8,)},
        _schools_noncentered,
    ),
    ZooModel("logistic_regression", classified_rows, {"w": (3,), "b": ()}, _logistic),
    ZooModel(
        "logistic_regression_subsampled",
        classified_rows,
        {"w": (3,), "b": ()},
        _logistic,
        options={"subsample_size": 16},
        full_options={"subsample_size": None},
        plates={"N": Plate(60, 16)},
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel(
        "logistic_regression_batch_arguments",
        classified_rows,
        {"w": (3,), "b": ()},
        _logistic,
        batch_arguments=True,
    ),
    ZooModel(
        "local_latents",
        lambda: (local_rows(),),
        {"mu": (), "z": (10,)},
        _local_latents,
        options={"subsample_size": 4},
        full_options={"subsample_size": None},
        plates={"N": Plate(10, 4)},
        local_sites=("z",),
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel(
        "local_positive_latents",
        lambda: (counts(),),
        {"mu": (), "rate": (10,)},
        options={"subsample_size": 4},
        full_options={"subsample_size": None},
        plates={"N": Plate(10, 4)},
        local_sites=("rate",),
        potential_note=_SUBSAMPLE_NOTE,
    ),
    ZooModel(
        "zero_inflated_poisson",
        lambda: (inflated_counts(),),
        {"gate": (), "rate": ()},
        _zero_inflated,
    ),
    ZooModel(
        "bnn",
        regression_rows,
        _BNN_LATENTS,
        options={"subsample_size": 8},
        full_options={"subsample_size": None},
        plates={"N": Plate(24, 8)},
        network=True,
        potential_note=_SUBSAMPLE_NOTE,
        numpyro_names={
            "fc1.weight": ("net/fc1.kernel", (1, 0)),
            "fc1.bias": ("net/fc1.bias", (0,)),
            "fc2.weight": ("net/fc2.kernel", (1, 0)),
            "fc2.bias": ("net/fc2.bias", (0,)),
            "sigma": ("sigma", ()),
        },
    ),
    ZooModel("bnn_linen", regression_rows, {}, hosts=("numpyro",), network=True),
    ZooModel("bnn_equinox", regression_rows, {}, hosts=("numpyro",), network=True),
    ZooModel("convolution", sequence_rows, {}, hosts=("pyro",), network=True),
    ZooModel("recurrent", sequence_rows, {}, hosts=("pyro",), network=True),
    ZooModel(
        "scan_autoregression",
        lambda: (series(),),
        {"phi": (), "x": (15,)},
        _autoregressive,
        hosts=("numpyro",),
    ),
)

ZOO: dict[str, ZooModel] = {model.name: model for model in _MODELS}


def names(host: str) -> list[str]:
    """Names of the models that exist in ``host`` ("pyro" or "numpyro")."""
    return [name for name, model in ZOO.items() if host in model.hosts]
