"""Both packages have the same gradients of the objective, through all samplers, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.implicit.objective import stein_discrepancy
from ppl_ext.implicit.samplers import PushForward, Sampler, SemiImplicit, UnrolledSGLD
from tests.backends import PACKAGES, backend_of, use_float64
from tests.implicit_support import drawn, functions_of, numbers

use_float64()

SAMPLERS = [
    PushForward((4, 3)),
    SemiImplicit((4,)),
    UnrolledSGLD(3, begin=PushForward((4,))),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda each: type(each).__name__)
def test_gradients_agree(sampler: Sampler) -> None:
    weights = numbers(sampler.parameter_shapes(3), 1)
    noise = numbers(sampler.noise_shapes(10, 3), 2)
    found = []
    for package in PACKAGES:
        backend = backend_of(package)
        xp, scales = backend.xp, backend.array(np.array([0.5, 1.0, 2.0]))

        def score(z: Any, xp: Any = xp) -> Any:
            return -xp.tanh(z) - 0.1 * z**3

        def value(parameters: Any, backend: Any = backend, scales: Any = scales) -> Any:
            z = drawn(backend, sampler, parameters, noise, score, dim=3)
            return stein_discrepancy(functions_of(backend), z, score(z), scales, (0.3, 1.0))

        slopes = backend.transforms.grad(value)(backend.arrays(weights))
        found.append({name: backend.numpy(slope) for name, slope in slopes.items()})
    for name in weights:
        assert np.abs(found[0][name]).max() > 0
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-8, atol=1e-12)
