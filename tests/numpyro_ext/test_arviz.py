"""Conversion to ArviZ for NumPyro: every group against values computed by hand, on all rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from numpyro_ext.density import LogDensity
from numpyro_ext.diagnostics import to_arviz
from numpyro_ext.stein.svgd import SVGD
from ppl_ext.errors import ArgumentError
from tests import arviz_support as support
from tests.models import numpyro_models, zoo

jax.config.update("jax_enable_x64", True)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

ROUNDING = {"rtol": 1e-10, "atol": 1e-10}


class FixedEngine:
    """An engine whose particles are its state."""

    num_particles = 20

    def __init__(self, model: Any, args: tuple[Any, ...], **options: Any) -> None:
        self.target = LogDensity(model, jax.random.key(0), args, options)
        self.data = self.target.bind(*args, **options)
        self.state = jnp.asarray(support.positions(self.target.dim, self.num_particles))

    def get_samples(self, state: Any, rng_key: Any = None, num_samples: int | None = None) -> Any:
        return self.target.constrain(state[:num_samples], self.data)


class GuideEngine(FixedEngine):
    """An engine with everything that the conversion looks for."""

    def sample_statistics(self, state: Any, positions: Any) -> dict[str, Any]:
        return {"log_q": -0.5 * (positions**2).sum(-1)}

    def arviz_attributes(self) -> dict[str, Any]:
        return {"sample_kind": "independent draws", "converged": True, "rank": 2}


def converted(name: str, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The zoo's model as an ArviZ object, and its draws."""
    model, args = numpyro_models.build(name), numpyro_models.arguments(name)
    engine = FixedEngine(model, args, **zoo.ZOO[name].options)
    result = to_arviz(engine, engine.state, *args, **zoo.ZOO[name].options, **options)
    draws = engine.get_samples(engine.state)
    return result, {site: np.asarray(value) for site, value in draws.items()}


def test_subsampled_model_is_converted_on_all_rows_in_order(tmp_path: Any) -> None:
    result, draws = converted("logistic_regression_subsampled", data_chunk=7, draw_chunk=6)
    x, y = zoo.classified_rows()
    np.testing.assert_array_equal(support.values(result, "posterior", "w"), draws["w"])
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        support.logistic_log_likelihood(draws["w"], draws["b"]),
        **ROUNDING,
    )
    np.testing.assert_array_equal(support.values(result, "observed_data", "y"), y)
    np.testing.assert_array_equal(support.values(result, "constant_data", "x"), x)
    assert "y" not in support.group(result, "constant_data")
    assert support.values(result, "posterior_predictive", "y").shape == (20, 60)
    for group in ("posterior_predictive", "log_likelihood"):
        assert support.group(result, group)["y"].dims == ("chain", "draw", "N")
    assert support.group(result, "observed_data")["y"].dims == ("N",)
    assert support.group(result, "constant_data")["x"].dims[0] == "N"

    again = support.round_trip(result, tmp_path / "result.nc")
    assert support.group_names(again) == support.group_names(result)
    for group in support.group_names(result):
        for variable in support.group(result, group).data_vars:
            np.testing.assert_array_equal(
                support.values(again, group, variable), support.values(result, group, variable)
            )
    attributes = support.group(again, "posterior").attrs
    assert attributes["sample_kind"] == "particles"
    assert "do not apply" in attributes["sample_note"]
    assert attributes["engine"] == "FixedEngine"
    assert attributes["inference_library"] == "numpyro_ext"


def test_leave_one_out_on_a_subsampled_model() -> None:
    name = "logistic_regression_subsampled"
    args, options = numpyro_models.arguments(name), zoo.ZOO[name].options
    engine = FixedEngine(numpyro_models.build(name), args, **options)
    state = jnp.asarray(support.logistic_positions())
    draws = {site: np.asarray(v) for site, v in engine.get_samples(state).items()}
    result = to_arviz(engine, state, *args, **options)
    support.check_loo(result, support.logistic_log_likelihood(draws["w"], draws["b"]))


def test_two_subsampled_plates() -> None:
    result, draws = converted("nested_plates_subsampled", data_chunk=5)
    rows = zoo.crossed_rows()
    likelihood = support.group(result, "log_likelihood")["y"]
    assert likelihood.dims == ("chain", "draw", "rows", "columns")
    np.testing.assert_allclose(
        likelihood.values[0], support.normal_log_likelihood(rows, draws["mu"]), **ROUNDING
    )
    np.testing.assert_array_equal(support.values(result, "observed_data", "y"), rows)


def test_local_latents_meet_their_own_rows() -> None:
    result, draws = converted("local_latents", data_chunk=3)
    expected = stats.norm(draws["z"], 0.5).logpdf(zoo.local_rows())
    np.testing.assert_allclose(support.values(result, "log_likelihood", "y"), expected, **ROUNDING)
    assert support.group(result, "posterior")["z"].dims == ("chain", "draw", "N")


def test_deterministic_sites_are_on_all_rows() -> None:
    result, draws = converted("deterministic", data_chunk=5)
    residual = zoo.normal_rows()[None] - draws["mu"][:, None]
    np.testing.assert_allclose(
        support.values(result, "posterior", "residual"), residual, **ROUNDING
    )
    np.testing.assert_allclose(
        support.values(result, "posterior", "twice"), 2.0 * draws["mu"], **ROUNDING
    )
    support.use_plots(result, "mu", "y")


def test_deterministic_values_that_depend_on_the_rows_outside_a_plate() -> None:
    def model(y: jax.Array, subsample_size: int | None = None) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        plate = numpyro.plate("N", len(y), subsample_size=subsample_size)
        with plate as rows:
            batch = y[rows]
        numpyro.deterministic("mean", batch.mean() + mu)
        numpyro.deterministic("table", jnp.stack([batch, batch + mu], -1))
        with plate:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=batch)

    y = jnp.asarray(zoo.normal_rows())
    engine = FixedEngine(model, (y,), subsample_size=5)
    result = to_arviz(engine, engine.state, y, subsample_size=5, data_chunk=5)
    mu = np.asarray(engine.state[:, 0])
    rows = zoo.normal_rows()
    np.testing.assert_allclose(
        support.values(result, "posterior", "mean"), rows.mean() + mu, **ROUNDING
    )
    table = support.group(result, "posterior")["table"]
    assert table.dims[2] == "N"
    np.testing.assert_allclose(
        table.values[0],
        np.stack([np.broadcast_to(rows, (20, 12)), rows + mu[:, None]], -1),
        **ROUNDING,
    )


def test_masked_and_scaled_observations() -> None:
    masked, draws = converted("masked_observations")
    expected = support.normal_log_likelihood(zoo.normal_rows(), draws["mu"])
    np.testing.assert_allclose(
        support.values(masked, "log_likelihood", "y"), expected * zoo.normal_mask(), **ROUNDING
    )
    scaled, draws = converted("scaled_observations")
    np.testing.assert_allclose(
        support.values(scaled, "log_likelihood", "y"),
        support.normal_log_likelihood(zoo.normal_rows(), draws["mu"]),
        **ROUNDING,
    )


def test_network_with_slashes_in_its_names(tmp_path: Any) -> None:
    result, draws = converted("bnn", data_chunk=10)
    posterior = support.group(result, "posterior")
    assert {"net.fc1.kernel", "net.fc1.bias", "sigma"} <= set(posterior.data_vars)
    assert '"net.fc1.kernel": "net/fc1.kernel"' in posterior.attrs["renamed"]
    x, y = zoo.regression_rows()
    mean = support.network_mean(
        x,
        [draws["net/fc1.kernel"], draws["net/fc2.kernel"]],
        [draws["net/fc1.bias"], draws["net/fc2.bias"]],
    )
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        stats.norm(mean, draws["sigma"][:, None]).logpdf(y),
        rtol=1e-8,
    )
    again = support.round_trip(result, tmp_path / "network.nc")
    np.testing.assert_array_equal(
        support.values(again, "posterior", "net.fc2.kernel"), draws["net/fc2.kernel"]
    )


def test_names_that_collide_once_they_are_safe() -> None:
    def model() -> None:
        numpyro.sample("a/b", dist.Normal(0.0, 1.0))
        numpyro.sample("a.b", dist.Normal(5.0, 1.0))
        numpyro.sample("draw", dist.Normal(0.0, 1.0))

    engine = FixedEngine(model, ())
    result = to_arviz(engine, engine.state)
    draws = engine.get_samples(engine.state)
    np.testing.assert_array_equal(support.values(result, "posterior", "a.b"), draws["a.b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "a.b_2"), draws["a/b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "draw_2"), draws["draw"])


def test_posterior_predictive_has_the_models_distribution() -> None:
    class Repeated(FixedEngine):
        num_particles = 400

        def get_samples(self, state: Any, rng_key: Any = None, num_samples: Any = None) -> Any:
            return {"mu": jnp.full(400, 2.0)}

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("N", len(y)):
            first = numpyro.sample("first", dist.Normal(mu, 1.0), obs=y)
            numpyro.sample("second", dist.Normal(first, 0.01), obs=y)

    y = jnp.asarray(zoo.normal_rows())
    engine = Repeated(model, (y,))
    results = [
        to_arviz(engine, engine.state, y, rng_key=jax.random.key(seed)) for seed in (0, 0, 1)
    ]
    first, same, other = (
        support.values(result, "posterior_predictive", "first") for result in results
    )
    np.testing.assert_array_equal(first, same)
    assert not np.any(first == other)
    count = first.size
    assert abs(first.mean() - 2.0) < 5.0 / count**0.5
    assert abs(first.std() - 1.0) < 5.0 / (2.0 * count) ** 0.5
    # A new second observation belongs to the new first one, not to the observed one.
    gap = support.values(results[0], "posterior_predictive", "second") - first
    assert abs(gap.std() - 0.01) < 0.05 / (2.0 * count) ** 0.5
    np.testing.assert_allclose(
        support.values(results[0], "log_likelihood", "second"),
        np.broadcast_to(stats.norm(0.0, 0.01).logpdf(0.0), (400, 12)),
        **ROUNDING,
    )


def test_statistics_losses_and_attributes_of_an_engine() -> None:
    name = "logistic_regression_subsampled"
    args, options = numpyro_models.arguments(name), zoo.ZOO[name].options
    engine = GuideEngine(numpyro_models.build(name), args, **options)
    losses = np.arange(50.0)
    result = to_arviz(engine, engine.state, *args, losses=losses, draw_chunk=7, **options)
    log_p = sum(engine.target.full_log_prior_and_likelihood(engine.state, engine.data))
    np.testing.assert_allclose(support.values(result, "sample_stats", "log_p"), log_p, rtol=1e-8)
    np.testing.assert_allclose(
        support.values(result, "sample_stats", "log_q"),
        -0.5 * (np.asarray(engine.state) ** 2).sum(-1),
        rtol=1e-8,
    )
    assert support.group(result, "optimization")["loss"].dims == ("step",)
    np.testing.assert_array_equal(support.values(result, "optimization", "loss"), losses)
    attributes = support.group(result, "posterior").attrs
    assert attributes["sample_kind"] == "independent draws"
    assert (attributes["converged"], attributes["rank"]) == (1, 2)


def test_groups_can_be_left_out_and_draws_limited() -> None:
    result, _ = converted(
        "conjugate_normal",
        num_samples=6,
        posterior_predictive=False,
        log_likelihood=False,
        observed_data=False,
        sample_stats=False,
        constant_data=False,
    )
    assert support.group_names(result) == {"posterior"}
    assert support.values(result, "posterior", "mu").shape == (6,)


def test_dims_coords_and_constant_data_can_be_given() -> None:
    labels = ["age", "weight", "height"]
    result, _ = converted(
        "logistic_regression",
        dims={"w": ["feature"], "x": ["N", "feature"]},
        coords={"feature": labels, "N": np.arange(100, 160)},
    )
    assert support.group(result, "posterior")["w"].dims == ("chain", "draw", "feature")
    assert list(support.group(result, "posterior")["feature"].values) == labels
    assert support.group(result, "constant_data")["x"].dims == ("N", "feature")
    assert support.group(result, "observed_data")["N"].values[0] == 100
    given, _ = converted("conjugate_normal", constant_data={"time": np.arange(12)})
    assert support.group(given, "constant_data")["time"].dims == ("N",)
    namesake, _ = converted("conjugate_normal", constant_data={"N": np.zeros((12, 2))})
    assert support.group(namesake, "constant_data")["N"].dims == ("N_plate", "N_dim_1")
    assert support.group(namesake, "observed_data")["y"].dims == ("N_plate",)
    with pytest.raises(ValueError, match="no variables"):
        converted("conjugate_normal", dims={"nothing": ["N"]})
    with pytest.raises(ValueError, match="no dimensions"):
        converted("conjugate_normal", coords={"nothing": [1]})
    with pytest.raises(ValueError, match="Expected 12 labels"):
        converted("conjugate_normal", coords={"N": [1, 2]})
    with pytest.raises(ValueError, match="Expected 1 dims"):
        converted("conjugate_normal", dims={"y": ["row", "column"]})


def test_batches_as_arguments_need_the_full_data() -> None:
    name = "logistic_regression_batch_arguments"
    model, (x, y) = numpyro_models.build(name), numpyro_models.arguments(name)
    engine = FixedEngine(model, (x, y))
    with pytest.raises(ArgumentError, match=r"plate 'N' has 60 rows, found arguments with 15"):
        to_arviz(engine, engine.state, x[:15], y[:15])
    draws = {site: np.asarray(v) for site, v in engine.get_samples(engine.state).items()}
    np.testing.assert_allclose(
        support.values(to_arviz(engine, engine.state, x, y), "log_likelihood", "y"),
        support.logistic_log_likelihood(draws["w"], draws["b"]),
        **ROUNDING,
    )


def test_missing_draws_are_named() -> None:
    class Forgetful(FixedEngine):
        def get_samples(self, state: Any, rng_key: Any = None, num_samples: Any = None) -> Any:
            return {"w": jnp.zeros((3, 3))}

    args = numpyro_models.arguments("logistic_regression")
    engine = Forgetful(numpyro_models.build("logistic_regression"), args)
    with pytest.raises(ArgumentError, match=r"found none for \['b'\]"):
        to_arviz(engine, engine.state, *args)


def test_scan() -> None:
    result, draws = converted("scan_autoregression")
    expected = stats.norm(draws["x"], zoo.AR_NOISE_STD).logpdf(zoo.series())
    np.testing.assert_allclose(support.values(result, "log_likelihood", "y"), expected, **ROUNDING)
    assert support.values(result, "posterior_predictive", "y").shape == (20, 15)


def test_svgd_is_converted_at_its_particles() -> None:
    name = "logistic_regression_subsampled"
    model, args = numpyro_models.build(name), numpyro_models.arguments(name)
    options = zoo.ZOO[name].options
    engine = SVGD(model, numpyro.optim.Adam(0.1), num_particles=8)
    fit = engine.run(jax.random.key(0), 5, *args, progress_bar=False, **options)
    result = to_arviz(engine, fit.state, *args, losses=fit.losses, **options)
    draws = engine.get_samples(fit.state)
    w, b = np.asarray(draws["w"]), np.asarray(draws["b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "w"), w)
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        support.logistic_log_likelihood(w, b),
        **ROUNDING,
    )
    prior = stats.norm.logpdf(w).sum(-1) + stats.norm(0.0, 2.0).logpdf(b)
    np.testing.assert_allclose(
        support.values(result, "sample_stats", "log_p"),
        prior + support.logistic_log_likelihood(w, b).sum(-1),
        rtol=1e-8,
    )
    np.testing.assert_array_equal(support.values(result, "optimization", "loss"), fit.losses)
    attributes = support.group(result, "posterior").attrs
    assert (attributes["engine"], attributes["sample_kind"]) == ("SVGD", "particles")

    # The result brings its trace along, in either place.
    brief = {"posterior_predictive": False, "log_likelihood": False, **options}
    for converted in (
        to_arviz(engine, fit, *args, **brief),
        to_arviz(engine, fit.state, *args, result=fit, **brief),
    ):
        np.testing.assert_array_equal(support.values(converted, "posterior", "w"), w)
        steps = support.group(converted, "optimization")
        assert set(steps.data_vars) == {"loss", "force_norm"}
        assert steps["force_norm"].dims == ("step",)
        np.testing.assert_array_equal(steps["loss"].values, fit.losses)
        np.testing.assert_array_equal(steps["force_norm"].values, fit.info["force_norm"])
    with pytest.raises(ArgumentError, match="Expected losses of the 5 steps, found 2"):
        to_arviz(engine, fit, *args, losses=[1.0, 2.0], **options)


def test_what_is_no_engine_or_no_result_is_refused() -> None:
    args = numpyro_models.arguments("conjugate_normal")
    model = numpyro_models.build("conjugate_normal")
    with pytest.raises(ArgumentError, match="Expected an engine .* found dict"):
        to_arviz({}, None, *args)
    engine = SVGD(model, numpyro.optim.Adam(0.1), num_particles=2)
    with pytest.raises(RuntimeError, match="has not seen"):
        to_arviz(engine, None, *args)
    fixed = FixedEngine(model, args)
    with pytest.raises(ArgumentError, match="Expected result .* found list"):
        to_arviz(fixed, fixed.state, *args, result=[1.0])  # type: ignore[arg-type]


def optional_observations(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    if y is not None:
        y = jnp.asarray(y, float)[:, 0]
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def test_missing_observations_are_named() -> None:
    x = np.linspace(0.0, 1.0, 6)
    engine = FixedEngine(optional_observations, (x, x[:, None]))
    words = r"observations of site 'y', .* found none.*Predictive\(model, posterior_samples="
    with pytest.raises(ArgumentError, match=words):
        to_arviz(engine, engine.state, x)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_observations_are_no_constants_though_jax_has_converted_them(dtype: Any) -> None:
    with jax.enable_x64(False):
        x, y = np.linspace(0.0, 1.0, 6), np.array([0.1, 1.3, -2.7, 3.9, 16.1, 5.0]).astype(dtype)
        engine = FixedEngine(optional_observations, (x, y[:, None]))
        result = to_arviz(engine, engine.state, x, y[:, None])
    assert set(support.group(result, "constant_data").data_vars) == {"x"}


def test_engine_fitted_on_batches_is_converted_on_the_full_data() -> None:
    name = "logistic_regression_batch_arguments"
    model, (x, y) = numpyro_models.build(name), numpyro_models.arguments(name)
    engine = SVGD(model, numpyro.optim.Adam(0.1), num_particles=4)
    fit = engine.run(jax.random.key(0), 3, x[:15], y[:15], progress_bar=False)
    result = to_arviz(engine, fit.state, x, y)
    draws = engine.get_samples(fit.state)
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        support.logistic_log_likelihood(np.asarray(draws["w"]), np.asarray(draws["b"])),
        **ROUNDING,
    )
