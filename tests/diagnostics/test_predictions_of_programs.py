"""New observations of every program of the zoo have the distribution of the host's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import arviz_support
from tests.backends import from_zoo, use_float64
from tests.models import zoo

use_float64()

#: New observations at one draw.
NUMBER = 300
#: Programs that torch cannot run at many draws at once: it has no rule for recurrent layers.
DRAW_BY_DRAW = {"recurrent"}


def draws_of(backend: Any, name: str, positions: np.ndarray) -> tuple[Any, ...]:
    model, args, kwargs = from_zoo(backend, name)
    target, data = backend.target(model, args, kwargs)
    found = target.constrain(backend.array(positions(target.dim)), data)
    return model, args, kwargs, target, data, found


def of_host(backend: Any, model: Any, args: Any, kwargs: Any, draws: Any) -> dict[str, np.ndarray]:
    """What the host's ``Predictive`` draws of a program whose observations are taken away."""
    free = backend.handlers.uncondition(model)
    predictive = backend.host.infer.Predictive(free, posterior_samples=dict(draws))
    keys = () if backend.is_pyro else (backend.key(5),)
    if backend.is_pyro:
        backend.host.set_rng_seed(5)
    found = predictive(*keys, *args, **kwargs)
    return {name: backend.numpy(value) for name, value in found.items()}


def predicted(backend: Any, model: Any, draws: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    found: dict[str, Any] = backend.room("diagnostics").predictive.predictions(
        model, draws, args, kwargs, 3
    )
    return found


@pytest.mark.filterwarnings("ignore:The model is run draw by draw")
@pytest.mark.parametrize("name", zoo.names("pyro"))
def test_new_observations_are_distributed_as_the_hosts(backend: Any, name: str) -> None:
    if name not in zoo.names(backend.name):
        pytest.skip("not of this host")
    at_one = np.repeat(arviz_support.positions(400, 1, 3), NUMBER, axis=0)
    model, args, kwargs, target, _, draws = draws_of(backend, name, lambda dim: at_one[:, :dim])
    if target.plates or not target.observed_sites or target.bound.enumerated:
        pytest.skip("the host draws other rows each time, observes nothing, or has other latents")
    own = predicted(backend, model, draws, args, kwargs)
    theirs = of_host(backend, model, args, kwargs, draws)
    assert own
    if any(theirs[site].size != values.size for site, values in own.items()):
        pytest.skip("Pyro's Predictive gives a plate's axis to the draws of a site inside of it")
    for site, values in own.items():
        other = theirs[site].reshape(values.shape)
        spread = np.sqrt((values.var(0) + other.var(0)) / NUMBER)
        # Of some thousand numbers in all programs together none is off by five errors.
        assert (abs(values.mean(0) - other.mean(0)) <= 5.0 * spread + 1e-9).all(), site


@pytest.mark.parametrize("name", zoo.names("pyro"))
def test_many_draws_at_once_are_what_each_is(
    backend: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.is_pyro:
        pytest.skip("NumPyro compiles one program for all draws")
    replays = backend.room("density.replay")
    positions = arviz_support.positions
    *_, target, data, draws = draws_of(backend, name, lambda dim: positions(dim, 7))
    groups = {"log_likelihood", "log_prior", "predictive", "deterministic"}
    fallen: list[str] = []
    monkeypatch.setattr(replays, "_tell_of_time", lambda *told: fallen.append(str(told[1:])))
    together = replays.replay(target, draws, data, groups=groups)
    assert bool(fallen) == (name in DRAW_BY_DRAW), fallen
    monkeypatch.setattr(replays, "_put_together", lambda _, values, groups, *more: (groups, ""))
    alone = replays.replay(target, draws, data, groups=groups)
    kinds = ["log_likelihood", "log_prior"]
    kinds += [] if target.bound.enumerated else ["deterministic"]
    for kind in kinds:
        one, many = getattr(alone, kind), getattr(together, kind)
        assert one.keys() == many.keys()
        for site, values in one.items():
            np.testing.assert_allclose(many[site], values, rtol=1e-9, atol=1e-9)
    for site, values in alone.predictive.items():
        assert together.predictive[site].shape == values.shape
        assert together.predictive[site].dtype == values.dtype


@pytest.mark.filterwarnings("default")
def test_a_model_that_branches_on_values_is_run_draw_by_draw(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not backend.is_pyro:
        pytest.skip("a program of JAX cannot branch on values")
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(backend.array(0.0), 1.0))
        scale = 1.0 if float(mean) > 0.0 else 0.1
        host.deterministic("scale", backend.array(scale))
        host.sample("y", dist.Normal(mean, scale), obs=y)

    draws = {"mean": backend.array(np.array([-1.0, 2.0, 0.5]))}
    monkeypatch.setattr("pyro_ext.density.replay._SLOW", 0.0)
    with pytest.warns(backend.public.EvaluationWarning, match="draw by draw.*num_samples="):
        found = predicted(backend, model, draws, (backend.array(np.array(0.0)),), {})
    assert found["y"].shape == (3,)
