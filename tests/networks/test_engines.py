"""Engines and guides take networks as programs: they run, and learn a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.networks import priors
from tests.networks import networks
from tests.stein_support import optimizer

X = np.random.default_rng(1).normal(size=(40, 3))
Y = X @ np.array([1.0, -0.5, 0.0])


def last_layer(library: str) -> GaussNewton:
    path = networks.LAYERS[library][1]
    return GaussNewton(sites=[f"net.{path}.{networks.weight_name(library)}", f"net.{path}.bias"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["SVGD", "SVN", "LaplaceGGN", "AutoDiagonalNormal", "AutoMatrixNormal", "horseshoe"],
)
def test_engines_run(backend: Any, name: str) -> None:
    library = networks.LIBRARIES[backend.name][0]
    prior: Any = priors.ScaledNormal()
    if name == "horseshoe":
        prior = {f"*{networks.weight_name(library)}": priors.Horseshoe(0.5), "*": prior}
    model = networks.program(backend, library, prior)
    adam = optimizer(backend, "adam", 0.05)
    guide = "AutoDiagonalNormal" if name == "horseshoe" else name
    parts: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "SVGD": ("SVGD", (adam,), {"num_particles": 5}),
        "SVN": ("SVN", (adam,), {"num_particles": 3, "curvature": last_layer(library)}),
        "LaplaceGGN": ("LaplaceGGN", (adam,), {}),
    }
    found = getattr(backend.public, guide, None) or getattr(backend.autoguide, guide, None)
    engine, given, options = parts.get(name, ("ProximalScoreVI", (found,), {}))
    fit = backend.fit(engine, model, *given, steps=400, args=backend.arrays((X, Y)), **options)
    predictive = backend.public.predictive_distribution(
        model, backend.arrays(fit.samples), *backend.arrays((X, Y))
    )
    assert float(backend.public.predictive_metrics(predictive)["rmse"]) < 0.8 * Y.std()


@pytest.mark.slow
def test_fit_takes_a_network(backend: Any) -> None:
    library = networks.LIBRARIES[backend.name][0]
    prior = {f"{networks.LAYERS[library][1]}.*": priors.ScaledNormal(), "*": None}
    keys = () if backend.is_pyro else (backend.key(),)
    found = backend.public.fit(
        *keys,
        networks.program(backend, library, prior),
        *backend.arrays((X, Y)),
        progress_bar=False,
    )
    # The last layer alone is linear regression.
    assert found.verdict.trusted
