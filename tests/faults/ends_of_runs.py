"""Runs that end far from the best state that they had."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.engine_support import Verbs
from tests.faults.programs import Y, mean
from tests.faults.table import RUNS, Trial, fault
from tests.stein_support import optimizer

GROUP = "Runs that get worse"
WARNS = "one warning at the end of the run, which has its best state"
LOST = "(?s)to end near its best, found .* nats at the end.*result.best.state"


def _fit(trial: Trial, rate: float) -> Any:
    """A guide that starts at the posterior, with gradient steps of this size."""
    public, backend = trial.public, trial.backend
    model, hosts = mean(backend), backend.autoguide if trial.is_pyro else backend.host.infer
    start = hosts.init_to_value(values={"mu": backend.array(np.array(Y.mean()))})
    guide = backend.autoguide.AutoDiagonalNormal(model, init_loc_fn=start)
    steps = public.GradientSteps(optimizer(backend, "sgd", rate))
    return trial.engine("ProximalScoreVI", model, guide, steps, initial_scale=0.16)


def _at_best(trial: Trial, engine: Any, result: Any) -> np.ndarray:
    """Draws of the best state."""
    if not trial.is_pyro:
        return np.asarray(engine.get_samples(result.best.state)["mu"])
    engine.load(result.best.state)
    return trial.backend.numpy(engine.get_samples()["mu"])


@fault(GROUP, "the gradient solver from a good start, with steps a little too large", WARNS)
def _diverges(trial: Trial) -> None:
    _far_from(trial, rate=1e-3, error=1.0)


@fault(GROUP, "the same with steps that are far too large", WARNS)
def _diverges_at_once(trial: Trial) -> None:
    _far_from(trial, rate=1e-2, error=0.1)


def _far_from(trial: Trial, rate: float, error: float) -> None:
    engine = _fit(trial, rate)
    with pytest.warns(trial.public.LostFitWarning, match=LOST) as found:
        _, result = trial.run(engine, 120, trial.backend.array(Y))
    assert len([each for each in found if each.category is trial.public.LostFitWarning]) == 1
    assert result.best.lost and result.best.step < 60
    assert result.best.last > 1e6
    draws = _at_best(trial, engine, result)
    # The posterior's standard deviation is 0.16.
    assert abs(draws.mean() - Y.mean()) < error, draws.mean()
    assert abs(draws.std() - 0.16) < error, draws.std()


@fault(GROUP, "the same with a step that is not finite", "the error carries the best state, too")
def _breaks(trial: Trial) -> None:
    engine = _fit(trial, 1e6)
    with pytest.raises(trial.public.NonFiniteError) as caught:
        trial.run(engine, 60, trial.backend.array(Y))
    assert caught.value.best.step == 0
    assert abs(_at_best(trial, engine, caught.value).mean() - Y.mean()) < 0.1


@fault(GROUP, "the same with `keep_best=False`", "one warning, with what to do")
def _not_kept(trial: Trial) -> None:
    engine = _fit(trial, 1e-2)
    with trial.warned(r"was not kept: run\(keep_best=True\)", trial.public.LostFitWarning):
        _, result = trial.run(engine, 120, trial.backend.array(Y), keep_best=False)
    assert result.best.lost and result.best.state is None


@fault(GROUP, "the best state of an engine with another number of particles")
def _of_another(trial: Trial) -> None:
    y = trial.backend.array(Y)
    _, result = trial.run(trial.svgd(mean(trial.backend)), 3, y)
    trial.steps, other = 0, trial.svgd(mean(trial.backend), num_particles=4)
    with trial.refused("another|num_particles"):
        if trial.is_pyro:
            other.load(result.best.state)
        trial.run(other, 3, y, state=result.best.state)


@fault(GROUP, "minibatches whose noise is greater than what the run gains", RUNS)
def _noise(trial: Trial) -> None:
    y = 30.0 * trial.backend.array(Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", trial.public.LostFitWarning)
        for steps in (25, 100):
            trial.run(trial.svgd(mean(trial.backend, 2)), steps, y)


@fault(
    GROUP,
    "`GSM` and `BaM` that start a thousand widths from the posterior, or on it",
    "`ConvergenceWarning` at the end of the run from afar, none from nearby",
)
def _matches_from_afar(trial: Trial) -> None:
    backend = trial.backend
    model, hosts = mean(backend), backend.autoguide if trial.is_pyro else backend.host.infer
    for name in ("GSM", "BaM"):
        for value, far in ((-200.0, True), (float(Y.mean()), False)):
            start = hosts.init_to_value(values={"mu": backend.array(np.array(value))})
            guide = backend.autoguide.AutoMultivariateNormal(model, init_loc_fn=start)
            engine = trial.engine(name, model, guide)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always", trial.public.ConvergenceWarning)
                state, _ = trial.run(engine, 120, backend.array(Y))
            shown = [str(each.message) for each in found]
            assert far == any("pull the guide away" in each for each in shown), (name, far, shown)
            draws = Verbs(backend, ()).samples(engine, state)["mu"]
            assert far == (abs(draws.mean() - Y.mean()) > 1.0)


def _scale(trial: Trial, prior: Any) -> Any:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        scale = host.sample("scale", prior)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(0.0, scale), obs=y)

    return model


@fault(
    GROUP,
    "`SVN` on a scale that starts at a twentieth of its value, in two families",
    "runs, and stays where the model is",
)
def _scale_from_afar(trial: Trial) -> None:
    dist, y = trial.backend.dist, trial.backend.array(np.linspace(-1.7, 1.7, 50))
    for prior in (dist.LogNormal(0.0, 2.0), dist.HalfCauchy(1.0)):
        engine = trial.engine("SVN", _scale(trial, prior), num_particles=4)
        start = {"scale": trial.backend.array(0.05 * np.linspace(0.5, 2.0, 4))}
        state, _ = trial.run(engine, 15, y, start=start)
        draws = Verbs(trial.backend, ()).samples(engine, state)["scale"]
        assert ((draws > 0.6) & (draws < 1.6)).all(), draws


@fault(
    GROUP,
    "`SGLD` with steps ten times too large for a scale",
    "draws, and `DoubtfulFitWarning` or `DivergenceWarning`",
)
def _runs_off(trial: Trial) -> None:
    dist, y = trial.backend.dist, trial.backend.array(np.linspace(-1.7, 1.7, 500))
    kernel = trial.public.SGLD(_scale(trial, dist.LogNormal(0.0, 2.0)), 0.1)
    kinds = (trial.public.DoubtfulFitWarning, trial.public.DivergenceWarning)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if trial.is_pyro:
            chains = trial.public.MCMC(
                kernel, num_samples=200, warmup_steps=50, disable_progbar=True
            )
            chains.run(y)
        else:
            from numpyro.infer import MCMC

            chains = MCMC(kernel, num_warmup=50, num_samples=200, progress_bar=False)
            chains.run(trial.backend.key(), y)
        chains.get_samples()
    assert any(issubclass(each.category, kinds) for each in found), found


@fault(GROUP, "a Gaussian process whose matrix cannot be factored at some positions", RUNS)
def _factors(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp
    x = trial.backend.array(np.linspace(0.0, 5.0, 12))
    y = trial.backend.array(np.sin(np.linspace(0.0, 5.0, 12)))

    def model(y: Any) -> None:
        length = host.sample("length", dist.LogNormal(1.0, 1.0))
        noise = host.sample("noise", dist.LogNormal(-2.0, 1.5))
        matrix = xp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2) + noise**2 * xp.eye(12)
        gaussian = dist.MultivariateNormal(xp.zeros(12), covariance_matrix=matrix)
        host.sample("y", gaussian, obs=y)

    keys = () if trial.is_pyro else (trial.backend.key(),)
    start = trial.public.find_start(*keys, model, y)
    assert np.isfinite(start.mean).all()
    trial.run(trial.svgd(model), 20, y)
