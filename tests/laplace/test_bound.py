"""Outputs of linearised networks spread by no more than the noise on rows of training."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch

from ppl_ext.laplace import laplace_ggn
from tests.backends import use_float64
from tests.guides_support import face_of
from tests.stein_support import optimizer

use_float64()


@pytest.fixture(params=["pyro", "numpyro"])
def face(request: Any) -> Any:
    return face_of(request.param)


def test_the_default_is_full_where_rows_take_no_more_memory(
    face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 rows of a location and a scale have at most 80 rows of a Jacobian."""
    monkeypatch.setattr(laplace_ggn, "FULL_UP_TO", 100)
    host, dist = face.host, face.dist

    def model(y: Any, batch: int) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("N", 40, subsample_size=batch) as i:
            host.sample("y", dist.Normal(w + 0.0 * y[i], 1.0 + 0.0 * y[i]), obs=y[i])

    for batch in (8, 40):
        target, data = face.backend.target(model, (face.array(np.arange(40.0)), batch))
        position = face.zeros(target.dim)
        outputs = partial(target.outputs, position, data, target.first_rows())
        for dim, structure in ((100, "full"), (125, "full"), (126, "kfac"), (201, "kfac")):
            chosen = laplace_ggn.structure_for(None, dim, outputs, target.plates)
            assert chosen.structure == structure, (batch, dim)
        # However few the rows are, a matrix of twice the size is the largest.
        assert laplace_ggn.structure_for(None, 201, dict, {}).structure == "kfac"


@pytest.mark.slow
@pytest.mark.parametrize("width", [19, 48, 68, 96])
def test_outputs_are_within_the_noise_on_rows_of_training(face: Any, width: int) -> None:
    """Networks of 500 to 10,000 weights in single precision, with the default curvature.

    H holds j j' of each row's slope j, in units of the noise, so that j' H^-1 j is at most 1. Of
    400 draws a deviation is known to 3.5 %, which allows for 15 % on the worst of 800 rows.
    """
    host, dist, xp = face.host, face.dist, face.backend.xp
    generator = np.random.default_rng(6)
    x = generator.uniform(-2.0, 2.0, (800, 3)).astype(np.float32)
    y = np.sin(2.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * generator.normal(size=800)
    array = torch.as_tensor if face.name == "pyro" else jax.numpy.asarray

    def weights(name: str, *shape: int) -> Any:
        zeros = array(np.zeros(shape, np.float32))
        return host.sample(name, dist.Normal(zeros, 1.0).to_event(len(shape)))

    def model(x: Any, y: Any = None) -> None:
        hidden = xp.tanh(x @ weights("w1", 3, width) + weights("b1", width))
        hidden = xp.tanh(hidden @ weights("w2", width, width) + weights("b2", width))
        outputs = hidden @ weights("w3", width)
        noise = host.sample("noise", dist.LogNormal(-1.0, 1.0))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(outputs, noise), obs=y)

    torch.set_default_dtype(torch.float32)
    try:
        with jax.enable_x64(False):
            public = face.backend.public
            given = array(x), array(y.astype(np.float32))
            options = {"linearize": True, "num_samples": 400}
            engine = public.LaplaceGGN(model, optimizer(face.backend, "adam", 0.01))
            if face.name == "pyro":
                engine.run(1_500, *given, progress_bar=False)
            else:
                run = engine.run(jax.random.key(0), 1_500, *given, progress_bar=False)
                options["state"] = run.state
            found = public.predictive_distribution(model, engine, *given, **options)
    finally:
        torch.set_default_dtype(torch.float64)
    noise = np.sqrt(float(found["variance"].mean()))
    ratio = found["mean"].std("draw").values / noise
    assert np.isfinite(ratio).all() and ratio.max() < 1.15
    # The bound is no accident of draws that hardly move.
    assert np.median(ratio) > 0.1
