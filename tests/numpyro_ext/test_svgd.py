"""SVGD and DeepEnsemble: right posteriors, the host's failures, and the engine's promises.

Tolerances of moments: SVGD with P particles should be no worse than P independent draws, whose
mean has a standard error of sd / sqrt(P). The RBF kernel with the median rule is known to lose
spread, up to 15 per cent of the sd at P = 100 in these few dimensions (measured 1 to 14); adding
the linear kernel makes up for it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.contrib.einstein import SVGD as HostSVGD
from numpyro.contrib.einstein import GraphicalKernel, IMQKernel, RandomFeatureKernel, RBFKernel
from numpyro.infer import Predictive, init_to_value
from scipy.special import digamma, polygamma

from numpyro_ext.gradients import Full, Minibatch
from numpyro_ext.kernels import IMQ, RBF, Linear, default_kernel
from numpyro_ext.stein import SVGD, DeepEnsemble
from numpyro_ext.stein.direction import ParticleState
from ppl_ext.errors import ArgumentError, NonFiniteError
from tests.models import numpyro_models, zoo

jax.config.update("jax_enable_x64", True)

NUM = 100
KEY = random.PRNGKey(0)


def adam(rate=0.3, steps=800, end=1e-2):
    """Adam whose rate falls to ``end`` of its start in ``steps`` steps."""
    return optax.adam(optax.exponential_decay(rate, steps, end))


def fit(name, kernel=None, num_particles=NUM, steps=800, optim=None, **options):
    keywords = options.pop("keywords", {})
    optim = optim or adam(steps=steps)
    engine = SVGD(numpyro_models.build(name), optim, kernel, num_particles, **options)
    data = numpyro_models.arguments(name)
    return engine, engine.run(KEY, steps, *data, progress_bar=False, **keywords)


def draws_of(fitted):
    engine, result = fitted
    return engine.get_samples(result.state)


def check_moments(name, draws, mean_tolerance, sd_tolerance):
    draws = {site: np.asarray(value) for site, value in draws.items()}
    for moment in zoo.ZOO[name].moments():
        values = moment.statistic(draws)
        error = (values.mean(axis=0) - moment.mean) / moment.std
        np.testing.assert_allclose(error, 0.0, atol=mean_tolerance, err_msg=moment.name)
        ratio = values.std(axis=0) / moment.std
        np.testing.assert_allclose(ratio, 1.0, atol=sd_tolerance, err_msg=moment.name)


def assert_same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


#: States of the default kernel's two terms, which remember nothing.
NO_STATE: dict[str, dict] = {"0": {}, "1": {}}


class TestPosteriors:
    def test_splitting_the_latents_does_not_change_the_answer(self):
        finals = []
        for name in ("gaussian_one_site", "gaussian_two_sites"):
            engine = SVGD(
                numpyro_models.build(name), numpyro.optim.Momentum(0.1, 0.9), num_particles=50
            )
            # Starting points are drawn site by site; here both begin from the same.
            start = random.uniform(KEY, (50, 3), minval=-2.0, maxval=2.0)
            state = engine.init(KEY)
            algorithm = ParticleState(engine.optim.init(start), state.algorithm.direction)
            state = state._replace(algorithm=algorithm)
            result = engine.run(KEY, 1000, init_state=state, progress_bar=False)
            finals.append(engine.particles(result.state))
        # The same vectors at every step, up to rounding of the two densities.
        np.testing.assert_allclose(finals[0], finals[1], rtol=1e-8, atol=1e-8)
        draws = engine.get_samples(result.state)
        z = np.concatenate([draws["a"], draws["b"][:, None]], axis=1)
        np.testing.assert_allclose(z.mean(axis=0), zoo.GAUSSIAN_3D_MEAN, atol=0.1)
        np.testing.assert_allclose(z.std(axis=0), 1.0, atol=0.15)
        correlation = np.corrcoef(z.T)[~np.eye(3, dtype=bool)]
        # 50 independent draws would have a standard error of (1 - 0.81) / sqrt(50) = 0.027.
        np.testing.assert_allclose(correlation, 0.9, atol=0.054)

    def test_lognormal(self):
        draws = draws_of(fit("lognormal"))
        assert abs(jnp.log(draws["x"]).mean()) < 0.05
        check_moments("lognormal", draws, 0.2, 0.2)

    def test_numpyros_own_svgd_drops_the_jacobian(self):
        """Pinned failure of the host: E[log x] is that of the mode of x, -0.25."""
        host = HostSVGD(
            numpyro_models.lognormal, numpyro.optim.Adam(0.05), RBFKernel(), num_stein_particles=20
        )
        result = host.run(KEY, 600, progress_bar=False)
        log_x = jnp.log(result.params["x_auto_loc"])
        assert -0.3 < log_x.mean() < -0.2

    @pytest.mark.parametrize(
        ("name", "kernel"),
        [
            ("exponential", IMQ()),
            ("dirichlet", RBF()),
            ("lkj_cholesky", RBF()),
            ("dependent_uniform", RBF()),
        ],
    )
    def test_supports(self, name, kernel):
        draws = draws_of(fit(name, kernel))
        # Two standard errors of the mean; two of the sd are 0.14 to 0.28.
        check_moments(name, draws, 0.2, 0.2)
        if name == "dependent_uniform":
            assert ((draws["b"] > 0) & (draws["b"] < draws["a"])).all()

    def test_a_linear_term_restores_the_spread(self):
        name = "dependent_uniform"
        # Half a standard error.
        check_moments(name, draws_of(fit(name, RBF() + Linear())), 0.05, 0.05)

    def test_linear_kernel_is_exact_on_a_gaussian(self):
        optim = adam(0.3, 2000, 1e-3)
        draws = draws_of(fit("gaussian_five", Linear(), num_particles=12, steps=2000, optim=optim))
        z = np.asarray(draws["z"])
        np.testing.assert_allclose(z.mean(axis=0), zoo.GAUSSIAN_5D_MEAN, atol=1e-6)
        np.testing.assert_allclose(np.cov(z.T, bias=True), zoo.GAUSSIAN_5D_COVARIANCE, atol=1e-6)

    def test_subsampled_plate_reaches_the_full_posterior(self):
        name = "logistic_regression_subsampled"
        full = fit(name, estimator=Full(), keywords={"subsample_size": 16})
        batches = fit(name, steps=2000, keywords={"subsample_size": 16})
        assert isinstance(batches[0].plan.estimator, Minibatch)
        assert isinstance(full[0].plan.estimator, Full)
        check_moments("logistic_regression", draws_of(full), 0.2, 0.2)
        # The rate falls to 3e-3, at which noise moves all particles alike by less than 0.2 sd.
        check_moments("logistic_regression", draws_of(batches), 0.4, 0.3)

    def test_batches_as_arguments(self):
        x, y = numpyro_models.arguments("logistic_regression")
        model = numpyro_models.logistic_regression_batch_arguments
        engine = SVGD(model, adam(steps=1500), num_particles=NUM)
        rows = np.random.default_rng(0)
        state = engine.init(KEY, x[:15], y[:15])
        for _ in range(375):
            for batch in rows.permutation(60).reshape(4, 15):
                state, _ = engine.update(state, x[batch], y[batch])
        check_moments("logistic_regression", engine.get_samples(state), 0.4, 0.3)

    @pytest.mark.parametrize("kernel", [IMQKernel(mode="vector"), RandomFeatureKernel()])
    def test_host_kernels(self, kernel):
        # The host's median includes the zero diagonal, its IMQ has no bandwidth, and random
        # features are noisy: their fixed points have the mean, and roughly the spread.
        draws = draws_of(fit("conjugate_normal", kernel, num_particles=50, steps=400))
        check_moments("conjugate_normal", draws, 0.28, 0.35)

    def test_host_kernel_by_site(self):
        # 20 particles: two standard errors of the mean are 0.45 sd.
        kernel = GraphicalKernel(local_kernel_fns={"b": IMQKernel()})
        draws = draws_of(fit("dependent_uniform", kernel, num_particles=20, steps=400))
        check_moments("dependent_uniform", draws, 0.45, 0.45)


def _correlated() -> np.ndarray:
    scales, lags = np.array([1.0, 0.5, 2.0, 1.0, 3.0]), np.subtract.outer(range(5), range(5))
    return np.outer(scales, scales) * 0.76 ** np.abs(lags)


def correlated_normal() -> None:
    covariance = jnp.asarray(_correlated())
    numpyro.sample("z", dist.MultivariateNormal(jnp.zeros(5), covariance))


def banana() -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(0.5 * a**2, 0.5))


def log_gamma() -> None:
    with numpyro.plate("pair", 2):
        numpyro.sample("g", dist.Gamma(2.0, 1.0))


def two_modes() -> None:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
    left = math.log(0.3) - 0.5 * (x + 2.5) ** 2
    right = math.log(0.7) - 0.5 * (x - 2.5) ** 2
    numpyro.factor("modes", jnp.logaddexp(left, right))


class TestDefaultKernel:
    """The default kernel with 100 particles and 2,000 steps on targets that are known exactly."""

    def fit(self, model, kernel=None, rate=0.1, steps=2000):
        optim = optax.adam(optax.cosine_decay_schedule(rate, steps))
        engine = SVGD(model, optim, kernel, num_particles=100)
        state = engine.run(KEY, steps, progress_bar=False).state
        return {name: np.asarray(value) for name, value in engine.get_samples(state).items()}

    def test_covariance_of_a_correlated_normal(self):
        z = self.fit(correlated_normal)["z"]
        expected = _correlated()
        error = np.cov(z.T, bias=True) - expected
        assert np.linalg.norm(error) < 0.02 * np.linalg.norm(expected)
        np.testing.assert_allclose(z.mean(0) / np.sqrt(np.diag(expected)), 0.0, atol=0.01)

    def test_curved_target(self):
        draws = self.fit(banana)
        for name, mean, variance in [("a", 0.0, 1.0), ("b", 0.5, 0.75)]:
            assert draws[name].mean() == pytest.approx(mean, abs=0.1 * variance**0.5)
            assert 0.9 < draws[name].var() / variance < 1.1

    def test_skewed_target(self):
        logs = np.log(self.fit(log_gamma)["g"])
        np.testing.assert_allclose(logs.mean(0), digamma(2.0), atol=0.02)
        np.testing.assert_allclose(logs.var(0) / polygamma(1, 2.0), 1.0, atol=0.1)

    def test_the_median_rule_serves_separated_modes(self):
        # The default's particles hardly change sides, whatever the shares that they start with.
        x = self.fit(two_modes, RBF(), rate=1.0, steps=3000)["x"]
        # Mean 1 and variance 7.25 - 1; a standard deviation of 2.5.
        assert x.mean() == pytest.approx(1.0, abs=0.25)
        assert 0.9 < x.var() / 6.25 < 1.1


class TestAnnealing:
    def test_factor_multiplies_scores_only(self):
        data = numpyro_models.arguments("logistic_regression")
        engine = SVGD(
            numpyro_models.logistic_regression,
            numpyro.optim.SGD(1e-3),
            None,
            7,
            annealing=lambda t: 0.25 * t,
        )
        state = engine.init(KEY, *data)
        for t in range(3):
            before = engine.particles(state)
            score = engine.target.full_score(before, engine.data).score
            state, _ = engine.update(state, *data)
            phi, _ = engine.kernel.direction(NO_STATE, before, 0.25 * t * score)
            np.testing.assert_allclose(engine.particles(state), before + 1e-3 * phi, rtol=1e-10)

    def test_refused(self):
        with pytest.raises(ArgumentError, match="annealing"):
            SVGD(numpyro_models.lognormal, adam(), annealing=0.5)


class TestEngine:
    def test_loss_and_force_norm(self):
        name = "gamma_poisson"
        engine = SVGD(numpyro_models.build(name), adam(), num_particles=5)
        data = numpyro_models.arguments(name)
        state = engine.init(KEY, *data)
        before = engine.particles(state)
        result = engine.run(KEY, 3, *data, init_state=state, progress_bar=False)
        score = engine.target.full_score(before, engine.data)
        expected = -(score.log_prior + score.log_likelihood).mean()
        assert result.losses[0] == pytest.approx(float(expected))
        phi, _ = engine.kernel.direction(NO_STATE, before, score.score)
        force = jnp.sqrt((phi**2).sum(axis=1).mean())
        assert result.info["force_norm"][0] == pytest.approx(float(force))
        assert result.losses.shape == result.info["force_norm"].shape == (3,)
        np.testing.assert_array_equal(result.params["particles"], engine.particles(result.state))

    def test_draws_are_the_particles(self):
        engine, result = fit("logistic_regression", RBF(1.0), num_particles=9, steps=20)
        draws = engine.get_samples(result.state)
        assert {site: value.shape for site, value in draws.items()} == {"w": (9, 3), "b": (9,)}
        assert_same(engine.get_samples(result.state, num_samples=9), draws)
        with pytest.raises(ArgumentError, match="the particles are the draws"):
            engine.get_samples(result.state, KEY, 10)
        x, _ = numpyro_models.arguments("logistic_regression")

        def unobserved(x):
            w, b = numpyro_models._coefficients()
            with numpyro.plate("N", len(x)):
                numpyro.sample("y", dist.Bernoulli(logits=x @ w + b))

        predictive = Predictive(unobserved, posterior_samples=draws)
        assert predictive(KEY, x)["y"].shape == (9, 60)

    @pytest.mark.parametrize(
        "optim",
        [
            numpyro.optim.ClippedAdam(0.05),
            optax.chain(optax.clip_by_global_norm(10.0), optax.rmsprop(0.02)),
        ],
    )
    def test_host_optimizers(self, optim):
        _, result = fit("conjugate_normal", RBF(1.0), num_particles=10, steps=100, optim=optim)
        assert np.mean(result.losses[-10:]) < np.mean(result.losses[:10])

    def test_killed_run_resumes_bit_identically(self, tmp_path):
        name = "logistic_regression_subsampled"
        data = numpyro_models.arguments(name)

        def make():
            return SVGD(
                numpyro_models.build(name),
                adam(steps=40),
                RBF() + Linear(),
                6,
                annealing=lambda t: jnp.minimum(1.0, 0.1 + t / 30),
            )

        options = {"subsample_size": 16, "progress_bar": False}
        first = make()
        whole = first.run(KEY, 40, *data, **options)

        def kill(step, state, info):
            if step == 27:
                raise KeyboardInterrupt

        path = tmp_path / "state"
        with pytest.raises(KeyboardInterrupt):
            first.run(
                KEY,
                40,
                *data,
                callback=kill,
                callback_every=1,
                checkpoint=path,
                checkpoint_every=10,
                **options,
            )
        resumed = make()
        state = resumed.load(path, *data, subsample_size=16)
        assert int(state.step) == 20
        rest = resumed.run(KEY, 20, *data, init_state=state, **options)
        np.testing.assert_array_equal(rest.losses, whole.losses[20:])
        assert_same(rest.state, whole.state)

    @pytest.mark.parametrize("policy", ["raise", "skip"])
    def test_step_that_is_not_finite_keeps_the_state(self, policy):
        x, y = numpyro_models.arguments("logistic_regression")
        broken = jnp.full_like(x, jnp.nan)
        engine = SVGD(
            numpyro_models.logistic_regression,
            numpyro.optim.Adam(0.1),
            RBF(1.0),
            num_particles=5,
            on_nonfinite=policy,
        )
        state, _ = engine.update(engine.init(KEY, x, y), x, y)
        if policy == "raise":
            with pytest.raises(NonFiniteError) as caught:
                engine.update(state, broken, y)
            assert_same(caught.value.state, state)
        else:
            after, loss = engine.update(state, broken, y)
            assert jnp.isnan(loss)
            assert int(after.skipped) == 1
            # Particles and the optimizer's state are as if nothing had happened.
            assert_same(after.algorithm, state.algorithm)

    def test_update_that_is_not_finite_is_seen_through_clipping(self):
        def model():
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.factor("huge", 1e160 * z)

        engine = SVGD(model, numpyro.optim.ClippedAdam(0.1, clip_norm=1.0), RBF(1.0), 3)
        with pytest.raises(NonFiniteError):
            engine.update(engine.init(KEY))

    def test_callback_stops_the_run(self):
        engine = SVGD(numpyro_models.lognormal, adam(), RBF(1.0), num_particles=4)
        seen = []

        def callback(step, state, info):
            seen.append(sorted(info))
            return step == 5

        result = engine.run(KEY, 50, progress_bar=False, callback=callback, callback_every=1)
        assert len(result.losses) == len(seen) == 5
        assert seen[0] == ["force_norm", "loss"]

    def test_no_retrace_after_the_first_step(self):
        traces = []

        def model(y):
            traces.append(None)
            numpyro_models.conjugate_normal(y)

        engine = SVGD(model, adam(), RBF() + Linear(), num_particles=4)
        (y,) = numpyro_models.arguments("conjugate_normal")
        state, _ = engine.update(engine.init(KEY, y), y)
        count = len(traces)
        for shift in (0.5, 1.0):
            state, _ = engine.update(state, y + shift)
        assert len(traces) == count

    @pytest.mark.parametrize("number", [0, -1, 2.0, True])
    def test_number_of_particles_is_checked(self, number):
        with pytest.raises(ArgumentError, match="num_particles"):
            SVGD(numpyro_models.lognormal, adam(), num_particles=number)

    @pytest.mark.parametrize("optim", [None, 0.1])
    def test_optimizer_is_checked(self, optim):
        with pytest.raises(ArgumentError, match="optimizer"):
            SVGD(numpyro_models.lognormal, optim)


class TestDeepEnsemble:
    def test_members_reach_the_mode_with_the_jacobian(self):
        counts = zoo.counts()
        engine = DeepEnsemble(numpyro_models.gamma_poisson, adam(), num_particles=4)
        data = numpyro_models.arguments("gamma_poisson")
        result = engine.run(KEY, 800, *data, progress_bar=False)
        # In u = log(rate) the density is shape * u - rate_parameter * exp(u).
        mode = (2.0 + counts.sum()) / (0.5 + len(counts))
        np.testing.assert_allclose(engine.get_samples(result.state)["rate"], mode, rtol=1e-4)

    def test_members_are_independent(self):
        def model():
            z = numpyro.sample("z", dist.Normal(0.0, 10.0))
            # Modes near -3 and 1.
            numpyro.factor("modes", jnp.logaddexp(-((z + 3.0) ** 2), -((z - 1.0) ** 2)))

        engine = DeepEnsemble(model, adam(steps=400), num_particles=20)
        z = draws_of((engine, engine.run(KEY, 400, progress_bar=False)))["z"]
        assert jnp.minimum(jnp.abs(z + 3), jnp.abs(z - 1)).max() < 0.1
        assert (z < -1).any() and (z > -1).any()

    def test_one_particle_is_the_same_as_svgd(self):
        data = numpyro_models.arguments("gamma_poisson")
        finals = []
        for cls in (SVGD, DeepEnsemble):
            optim = numpyro.optim.SGD(1e-3)
            engine = cls(numpyro_models.gamma_poisson, optim, num_particles=1)
            result = engine.run(KEY, 5, *data, progress_bar=False)
            finals.append(result.params["particles"])
        np.testing.assert_allclose(*finals, rtol=1e-12)

    def test_takes_no_kernel(self):
        with pytest.raises(TypeError, match="kernel"):
            DeepEnsemble(numpyro_models.lognormal, adam(), kernel=RBF())


def test_init_strategy_and_temperature_reach_the_first_step():
    def conjugate(y):
        a = numpyro.sample("a", dist.Normal(0.0, 3.0))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

    y = np.linspace(-1.0, 3.0, 12)
    engine = SVGD(
        conjugate,
        numpyro.optim.Adam(0.1),
        num_particles=3,
        likelihood_temperature=0.25,
        init_strategy=init_to_value(values={"a": 7.0}),
    )
    state = engine.init(KEY, y)
    particles = engine.particles(state)
    np.testing.assert_allclose(particles, np.full((3, 1), 7.0))
    score = engine.target.full_score(particles, engine.data)
    _, loss = engine.update(state, y)
    np.testing.assert_allclose(loss, -(score.log_prior + score.log_likelihood / 0.25).mean())


def test_saved_states_belong_to_their_kernel(tmp_path):
    def engine(kernel):
        model = numpyro_models.build("conjugate_normal")
        return SVGD(model, numpyro.optim.Adam(0.1), kernel, num_particles=3)

    data = numpyro_models.arguments("conjugate_normal")
    path = tmp_path / "state.npz"
    first = engine(default_kernel())
    first.save(path, first.init(KEY, *data))
    assert int(engine(None).load(path, *data).step) == 0
    words = r"another kernel: expected IMQ\(bandwidth='median', exponent=-0.5, metric=None\), found"
    with pytest.raises(ArgumentError, match=words):
        engine(IMQ()).load(path, *data)
