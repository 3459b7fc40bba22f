"""The demonstration's three problems: data, what is compared, and predictions from draws.

Models themselves are written twice, in ``pyro_fits.py`` and ``numpyro_fits.py``; everything here is
NumPy, so that both backends are judged by the same code. Draws come as a mapping from site to an
array with draws first, under the site names of the NumPyro model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets

Array = NDArray[np.float64]
Draws = Mapping[str, Array]

HIDDEN = 50
#: Rows of a minibatch of the network.
BATCH = 100
#: First learning rate of SVGD's Adam, which decays by a cosine over the run.
SVGD_RATE = {"eight_schools": 0.02, "logistic_regression": 0.05, "network": 0.01}


@dataclass(frozen=True)
class Problem:
    """One problem of the demonstration.

    Parameters
    ----------
    name : str
    title : str
        For tables and plots.
    arguments : tuple of arrays
        Arguments of the model: the training data.
    compared : callable
        Draws to the quantities (draws, K) whose posterior is compared with the reference.
    labels : tuple of str
        Names of those K quantities, or of the first few of them.
    test_log_likelihood : callable
        Draws to the mean log likelihood of a test row, under the mixture over the draws.
    about_test : str
        What the test log likelihood is, for the table's caption.
    """

    name: str
    title: str
    arguments: tuple[Array, ...]
    compared: Callable[[Draws], Array]
    labels: tuple[str, ...]
    test_log_likelihood: Callable[[Draws], float]
    about_test: str
    extra: Mapping[str, Any]


def log_mean_exp(values: Array) -> Array:
    """Logarithm of the mean over the first axis of exp(values)."""
    largest = values.max(0)
    return np.asarray(largest + np.log(np.exp(values - largest).mean(0)))


def _normal_log_density(y: Array, mean: Array, scale: Array) -> Array:
    residual = (y - mean) / scale
    return np.asarray(-0.5 * residual**2 - np.log(scale) - 0.5 * np.log(2 * np.pi))


def eight_schools() -> Problem:
    """Effects of coaching in eight schools (Rubin 1981), non-centred."""
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def compared(draws: Draws) -> Array:
        mu, tau = draws["mu"], draws["tau"]
        theta = mu[:, None] + tau[:, None] * draws["eta"]
        return np.column_stack([mu, tau, theta])

    def new_school(draws: Draws) -> float:
        # There is no test set: each school's effect is predicted as that of a new school would be.
        scale = np.sqrt(draws["tau"][:, None] ** 2 + errors**2)
        rows = _normal_log_density(effects, draws["mu"][:, None], scale)
        return float(log_mean_exp(rows).mean())

    return Problem(
        name="eight_schools",
        title="Eight schools",
        arguments=(errors, effects),
        compared=compared,
        labels=("mu", "tau", *(f"theta[{i}]" for i in range(8))),
        test_log_likelihood=new_school,
        about_test="of the observed effects, predicted as for a new school",
        extra={},
    )


def logistic_regression() -> Problem:
    """Breast cancer diagnosis (569 rows, 30 features) with Normal(0, 1) weights."""
    split = datasets.shipped("breast_cancer").random_split(seed=0, test_fraction=0.25)
    split = split.standardised()
    x_test, y_test = split.x_test, split.y_test

    def test(draws: Draws) -> float:
        logits = draws["weights"] @ x_test.T + draws["intercept"][:, None]
        signed = np.where(y_test == 1, logits, -logits)
        return float(log_mean_exp(-np.logaddexp(0.0, -signed)).mean())

    return Problem(
        name="logistic_regression",
        title="Logistic regression, breast cancer",
        arguments=(split.x_train, split.y_train.astype(np.float64)),
        compared=lambda draws: np.column_stack([draws["intercept"], draws["weights"]]),
        labels=("intercept", *(f"weights[{i}]" for i in range(30))),
        test_log_likelihood=test,
        about_test="of 142 held-out rows",
        extra={},
    )


def network_output(draws: Draws, x: Array) -> Array:
    """Output of the network for each draw and row, (draws, rows)."""
    hidden = np.tanh(x @ draws["w1"] + draws["b1"][:, None, :])
    return np.asarray((hidden @ draws["w2"] + draws["b2"][:, None, :])[..., 0])


def network() -> Problem:
    """Diabetes progression (442 rows, 10 features) with a 10-50-1 network of learnt noise."""
    data = datasets.shipped("diabetes")
    split = data.random_split(seed=0, test_fraction=0.25).standardised(response=True)
    x_test, y_test = split.x_test, split.y_test
    scale = float(split.y_scale)

    def test(draws: Draws) -> float:
        rows = _normal_log_density(y_test, network_output(draws, x_test), draws["noise"][:, None])
        return float(log_mean_exp(rows).mean() - np.log(scale))

    def compared(draws: Draws) -> Array:
        # Weights of a network are not identified, its outputs are.
        return np.column_stack([draws["noise"], network_output(draws, x_test)])

    bmi = 2
    grid = np.tile(np.median(split.x_train, axis=0), (60, 1))
    grid[:, bmi] = np.linspace(split.x_train[:, bmi].min(), split.x_train[:, bmi].max(), 60)
    return Problem(
        name="network",
        title="Bayesian neural network, diabetes",
        arguments=(split.x_train, split.y_train),
        compared=compared,
        labels=("noise", *(f"output[{i}]" for i in range(len(y_test)))),
        test_log_likelihood=test,
        about_test="of 110 held-out rows, in original units",
        extra={
            "grid": grid,
            "feature": bmi,
            "y_location": float(split.y_location),
            "y_scale": scale,
        },
    )


def all_problems() -> list[Problem]:
    """The three problems in order."""
    return [eight_schools(), logistic_regression(), network()]
