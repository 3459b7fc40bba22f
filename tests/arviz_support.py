"""What the ArviZ tests of both packages share: fixed draws, reference values, use of ArviZ.

Nothing here imports a host, so that the tests of one package run without the other's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arviz
import numpy as np
from scipy import stats

from tests.models import zoo

MAJOR = int(arviz.__version__.split(".")[0])

# ArviZ announces its own refactoring, and old and new versions use what numpy, xarray and
# matplotlib have deprecated.
IGNORED = (
    "ignore::DeprecationWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::FutureWarning",
)


def group_names(result: Any) -> set[str]:
    """Names of the groups of an InferenceData or a DataTree."""
    return {str(name) for name in (result.groups() if MAJOR < 1 else result.children)}


def group(result: Any, name: str) -> Any:
    """One group as an xarray dataset."""
    return result[name] if MAJOR < 1 else result[name].to_dataset()


def values(result: Any, name: str, variable: str) -> np.ndarray:
    """Values of a variable, draws first where it has draws."""
    array = group(result, name)[variable]
    if "chain" in array.dims:
        assert array.dims[:2] == ("chain", "draw")
        assert array.sizes["chain"] == 1
        array = array.isel(chain=0)
    return np.asarray(array.values)


def round_trip(result: Any, path: Path) -> Any:
    """Write to netCDF and read again."""
    result.to_netcdf(str(path))
    return arviz.from_netcdf(str(path))


def use_plots(result: Any, variable: str, observed: str) -> None:
    """Draw the plots that users draw most."""
    import matplotlib.pyplot as plt

    if MAJOR < 1:
        arviz.plot_posterior(result, var_names=[variable])
        arviz.plot_trace(result, var_names=[variable])
        arviz.plot_forest(result, var_names=[variable])
        arviz.plot_ppc(result, var_names=[observed], num_pp_samples=5)
    else:
        options = {"backend": "matplotlib"}
        arviz.plot_dist(result, var_names=[variable], **options)
        arviz.plot_trace(result, var_names=[variable], **options)
        arviz.plot_forest(result, var_names=[variable], **options)
        arviz.plot_ppc_dist(result, var_names=[observed], num_samples=5, **options)
    assert plt.get_fignums()
    plt.close("all")


def positions(dim: int, num: int = 20, seed: int = 0) -> np.ndarray:
    """Unconstrained positions (num, dim) to stand for a fit."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, dim))


def logistic_positions(num: int = 500) -> np.ndarray:
    """(num, 4) draws close to the posterior of the zoo's logistic regression."""
    mean, std, _ = zoo.logistic_moments()
    return np.random.default_rng(0).normal(mean, 0.5 * std, (num, 4))


def check_loo(result: Any, log_likelihood: np.ndarray) -> None:
    """Leave-one-out elpd of close draws lies just below their log predictive density."""
    found = arviz.loo(result)
    log_mean = np.logaddexp.reduce(log_likelihood, 0) - np.log(len(log_likelihood))
    assert found.n_data_points == log_likelihood.shape[1]
    elpd = float(found.elpd_loo if MAJOR < 1 else found.elpd)
    assert log_mean.sum() - 4.0 < elpd < log_mean.sum()


def sensitivity(result: Any, sites: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Sensitivity of each number of some sites to the prior and to the likelihood."""
    if MAJOR < 1:

        def component(name: str) -> np.ndarray:
            found = arviz.psens(result, component=name)
            return np.concatenate([found[site].values.ravel() for site in sites])

        return component("prior"), component("likelihood")
    table = arviz.psense_summary(result, var_names=sites)
    return table["prior"].to_numpy(float), table["likelihood"].to_numpy(float)


def leave_one_out_values(result: Any, site: str) -> np.ndarray:
    """Leave-one-out probability integral transform of each observation."""
    if MAJOR < 1:
        return np.asarray(arviz.loo_pit(result, y=site))
    return np.asarray(arviz.loo_pit(result, var_names=[site])[site])


def logistic_log_likelihood(w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(S, 60) log likelihood of the zoo's logistic regression."""
    x, y = zoo.classified_rows()
    logits = w @ x.T + b[:, None]
    return stats.bernoulli(1.0 / (1.0 + np.exp(-logits))).logpmf(y.astype(int))


def normal_log_likelihood(rows: np.ndarray, mean: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """(S, *rows) log likelihood of rows around each draw's mean (S,)."""
    mean = mean.reshape((-1,) + (1,) * rows.ndim)
    return np.asarray(stats.norm(mean, scale).logpdf(rows[None]))


def network_mean(x: np.ndarray, kernels: list[np.ndarray], biases: list[np.ndarray]) -> np.ndarray:
    """(S, N) output of the zoo's two-layer network; kernels (S, in, out), biases (S, out)."""
    hidden = np.tanh(x @ kernels[0] + biases[0][:, None, :])
    return (hidden @ kernels[1] + biases[1][:, None, :])[..., 0]


def khat(ratios: np.ndarray) -> float:
    """k-hat of log ratios by ArviZ."""
    with np.errstate(all="ignore"):
        if MAJOR < 1:
            return float(arviz.psislw(ratios)[1])
        from arviz_stats.base import array_stats

        # It is made for leave-one-out and takes log likelihoods: log weights negated.
        return float(array_stats.psislw(-ratios)[1])
