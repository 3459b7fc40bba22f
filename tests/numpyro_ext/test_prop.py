import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDiagonalNormal

from numpyro_ext.score import ProximalScoreVI
from numpyro_ext.stein import SVGD

jax.config.update("jax_enable_x64", True)
KEY = random.key(0)
Y = np.linspace(-1.0, 3.0, 12)


def conjugate(y):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def test_the_proximal_weight_reaches_the_steps():
    def fitted(weight, inner):
        e = ProximalScoreVI(
            conjugate,
            AutoDiagonalNormal,
            numpyro.optim.SGD(1e-4),
            proximal=weight,
            num_inner_steps=inner,
        )
        start = e.init(KEY, Y)
        state, _ = e.update(start, Y)
        return np.concatenate(
            [
                np.ravel(state.algorithm.parameters[k] - v)
                for k, v in start.algorithm.parameters.items()
            ]
        )

    # The pull is zero where the guide stands, so only the second inner step feels it.
    np.testing.assert_allclose(fitted(9.0, 1), fitted(0.0, 1), rtol=1e-9)
    free, held = fitted(0.0, 2), fitted(9.0, 2)
    assert np.linalg.norm(held) < 0.999 * np.linalg.norm(free)


def test_engine_follows_the_init_strategy_and_tempers_its_loss():
    e = SVGD(
        conjugate,
        numpyro.optim.Adam(0.1),
        num_particles=3,
        likelihood_temperature=0.25,
        init_strategy=init_to_value(values={"a": 7.0}),
    )
    state = e.init(KEY, Y)
    z = e.particles(state)
    np.testing.assert_allclose(z, np.full((3, 1), 7.0))
    s = e.target.full_score(z, e.data)
    _, loss = e.update(state, Y)
    np.testing.assert_allclose(loss, -(s.log_prior + s.log_likelihood / 0.25).mean())
