"""Numbers drawn as one vector are those of JAX."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from numpyro_ext.draws import standard_gumbel, standard_normal


@pytest.mark.parametrize("shape", [(), (3,), (5, 3), (2, 5, 3)])
def test_the_numbers_are_those_of_jax(shape: tuple[int, ...]) -> None:
    key = jax.random.key(3)
    np.testing.assert_array_equal(standard_normal(key, shape), jax.random.normal(key, shape))
    np.testing.assert_array_equal(standard_gumbel(key, shape), jax.random.gumbel(key, shape))
