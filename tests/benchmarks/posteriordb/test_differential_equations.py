"""The differential equations of posteriordb in both hosts: plain solutions, draws, and Stan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import solve_ivp

from benchmarks.posteriordb.programs import numpyro_program
from benchmarks.posteriordb.programs.steps import drug_times, turns
from tests.benchmarks.posteriordb import checks, plain
from tests.benchmarks.posteriordb.standard import *  # noqa: F403
from tests.benchmarks.posteriordb.standard import Program

jax.config.update("jax_enable_x64", True)
torch.set_default_dtype(torch.float64)

# Unconstrained values in the middle of the posteriors, where solutions are smooth.
CENTRES: dict[str, dict[str, Any]] = {
    "lotka_volterra": {
        "theta": np.log([0.55, 0.028, 0.8, 0.024]),
        "z_init": np.log([33.9, 5.9]),
        "sigma": np.log([0.25, 0.25]),
    },
    "one_comp_mm_elim_abs": {"k_a": -0.3, "K_m": 0.0, "V_m": -0.1, "sigma": -2.1},
}
# Errors of the logarithm of a mean that the programs' documentation states.
LARGEST_ERROR = {"lotka_volterra": 9e-6, "one_comp_mm_elim_abs": 4e-6}


Sites = dict[str, Any]


# -- plain log densities ----------------------------------------------------------------------


def integrated(slope: Callable[..., Any], start: Any, begin: float, times: Any) -> np.ndarray:
    """Solution (N, ...) at times, to a relative accuracy of 1e-10."""
    found = solve_ivp(
        slope,
        (begin, float(times[-1])),
        start,
        method="DOP853",
        t_eval=np.asarray(times, float),
        rtol=1e-10,
        atol=1e-13,
    )
    assert found.success
    return found.y.T


def numbers(theta: Any, z_init: Any, data: Sites) -> np.ndarray:
    """Numbers of prey and predator (N, 2)."""

    def slope(time: float, z: Any) -> list[float]:
        prey, predator = z
        return [
            theta[0] * prey - theta[1] * prey * predator,
            theta[3] * prey * predator - theta[2] * predator,
        ]

    return integrated(slope, z_init, 0.0, data["ts"])


def populations(u: Sites, data: Sites) -> float:
    theta, total = plain.positive(u["theta"])
    z_init, start_stretch = plain.positive(u["z_init"])
    sigma, sigma_stretch = plain.positive(u["sigma"])
    total += start_stretch + sigma_stretch
    total += stats.norm.logpdf(theta, [1.0, 0.05, 1.0, 0.05], [0.5, 0.05, 0.5, 0.05]).sum()
    total += stats.lognorm.logpdf(sigma, 1.0, scale=np.exp(-1.0)).sum()
    total += stats.lognorm.logpdf(z_init, 1.0, scale=10.0).sum()
    means = np.concatenate([[z_init], numbers(theta, z_init, data)])
    observed = np.concatenate([[data["y_init"]], data["y"]])
    return total + stats.lognorm.logpdf(observed, sigma, scale=means).sum()


def concentrations(k_a: float, k_m: float, v_m: float, data: Sites) -> np.ndarray:
    """Concentrations of the drug (N,)."""

    def slope(time: float, c: Any) -> Any:
        absorption = k_a * data["D"] / data["V"] * np.exp(-k_a * (time - data["t0"]))
        return absorption - v_m / data["V"] * c / (k_m + c)

    return integrated(slope, [0.0], data["t0"], data["times"])[:, 0]


def drug(u: Sites, data: Sites) -> float:
    values, total = {}, 0.0
    for name in ("k_a", "K_m", "V_m", "sigma"):
        values[name], stretch = plain.positive(u[name])
        total += stretch + stats.cauchy.logpdf(values[name])
    means = concentrations(values["k_a"], values["K_m"], values["V_m"], data)
    return total + stats.lognorm.logpdf(data["C_hat"], values["sigma"], scale=means).sum()


# -- the check sees errors ---------------------------------------------------------------------


def without_jacobian(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the Jacobian of the initial numbers' logarithms is forgotten."""
    return -log(sites["z_init"]).sum()


def halved_scale(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of theta has half its scales."""
    scales = (0.5, 0.05, 0.5, 0.05)
    return sum(
        dist.Normal(loc, scale / 2).log_prob(value) - dist.Normal(loc, scale).log_prob(value)
        for loc, scale, value in zip((1.0, 0.05, 1.0, 0.05), scales, sites["theta"], strict=True)
    )


def without_the_start(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the first observation is left out."""
    return -dist.LogNormal(log(sites["z_init"]), sites["sigma"]).log_prob(sites["y_init"]).sum()


def doubled_cauchy(dist: Any, log: Callable[[Any], Any], sites: Sites) -> Any:
    """Log density to add when the prior of V_m has twice its scale."""
    v_m = sites["V_m"]
    return dist.HalfCauchy(2.0).log_prob(v_m) - dist.HalfCauchy(1.0).log_prob(v_m)


# A log density of about a hundred, with residuals of a few standard deviations, is as far off as
# the integration.
PROGRAMS = {
    model: Program(
        density,
        error=1e-5,
        centre=CENTRES[model],
        spread=0.1,
        draws=5000,
        stan=1e-4,
        wide=False,
        graph=False,
        once=True,
    )
    for model, density in {"lotka_volterra": populations, "one_comp_mm_elim_abs": drug}.items()
}
WRONG = [
    ("official", "hudson_lynx_hare-lotka_volterra", without_jacobian),
    ("official", "hudson_lynx_hare-lotka_volterra", halved_scale),
    ("official", "hudson_lynx_hare-lotka_volterra", without_the_start),
    ("official", "one_comp_mm_elim_abs-one_comp_mm_elim_abs", doubled_cauchy),
]


# -- solvers ------------------------------------------------------------------------------------


def reference_values(name: str, count: int) -> dict[str, np.ndarray]:
    """Reference draws (count, ...), spread over all chains."""
    reference = checks.open_database("official")[name].reference_draws()
    assert reference is not None
    flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in reference.items()}
    step = len(next(iter(flat.values()))) // count
    return {key: value[::step] for key, value in flat.items()}


@pytest.mark.parametrize("model", PROGRAMS)
def test_the_solution_is_as_accurate_as_stated(model: str) -> None:
    if reason := checks.why_not_official():
        pytest.skip(reason)
    from numpyro import handlers

    (name,) = (case.values[1] for case in checks.cases([model]) if case.values[0] == "official")
    data = checks.open_database("official")[name].data()
    draws = reference_values(name, 50)
    site = "y" if model == "lotka_volterra" else "C_hat"

    def log_means(values: Any) -> Any:
        program = handlers.substitute(numpyro_program(model), values)
        fn = handlers.trace(handlers.seed(program, 0)).get_trace(data)[site]["fn"]
        base = getattr(fn, "base_dist", fn)
        return (base if hasattr(base, "loc") else base.base_dist).loc

    sites = {key: jnp.asarray(value) for key, value in draws.items()}
    found = np.asarray(jax.jit(jax.vmap(log_means))(sites))
    if model == "lotka_volterra":
        pairs = zip(draws["theta"], draws["z_init"], strict=True)
        exact = np.array([numbers(theta, z_init, data) for theta, z_init in pairs])
    else:
        triples = zip(draws["k_a"], draws["K_m"], draws["V_m"], strict=True)
        exact = np.array([concentrations(*triple, data) for triple in triples])
    assert found.shape == exact.shape
    error = np.abs(found - np.log(exact)).max()
    print(f"{model}: {error:.1e}")
    assert error < LARGEST_ERROR[model]


def test_turns_are_of_order_four() -> None:
    """Halving the step of a harmonic oscillation divides the error by sixteen."""
    errors = []
    for steps in (2, 4, 8):
        plan = turns([0.0, 2.0], steps)
        place, speed = 1.0, 0.0
        for first, second in zip(plan.first, plan.second, strict=True):
            place += first * speed
            speed -= second * place
        errors.append(np.hypot(place - np.cos(2.0), speed + np.sin(2.0)))
    ratios = np.array(errors[:-1]) / errors[1:]
    assert (ratios > 14.0).all() and (ratios < 18.0).all(), errors


def test_turns_know_the_time() -> None:
    plan = turns([1.0, 1.5, 4.0])
    assert len(plan.first) == 2 * plan.each
    np.testing.assert_allclose(np.cumsum(plan.first) + 1.0, plan.first_clock, atol=1e-14)
    passed = np.concatenate([[0.0], np.cumsum(plan.second)[:-1]])
    np.testing.assert_allclose(passed + 1.0, plan.second_clock, atol=1e-14)
    np.testing.assert_allclose(plan.first_clock[plan.each - 1 :: plan.each], [1.5, 4.0])


def test_the_drug_is_observed_at_ends_of_steps() -> None:
    times = drug_times(1.0, [1.5, 2.0, 3.0])
    assert times[0] == 1.0 and (np.diff(times) > 0.0).all()
    assert set(times[::2]) >= {1.5, 2.0, 3.0}
    np.testing.assert_allclose(times[1::2], (times[:-1:2] + times[2::2]) / 2)
