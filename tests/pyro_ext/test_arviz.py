"""Conversion to ArviZ for Pyro: every group against values computed by hand, on all rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from ppl_ext.errors import ArgumentError
from pyro_ext.density import LogDensity
from pyro_ext.diagnostics import to_arviz
from pyro_ext.stein.svgd import SVGD
from tests import arviz_support as support
from tests.models import pyro_models, zoo

torch.set_default_dtype(torch.float64)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

ROUNDING = {"rtol": 1e-10, "atol": 1e-10}


class FixedEngine:
    """An engine whose particles are given."""

    num_particles = 20

    def __init__(self, model: Any, args: tuple[Any, ...], **options: Any) -> None:
        self.target = LogDensity(model, args, options)
        self.data = self.target.bind(*args, **options)
        positions = support.positions(self.target.dim, self.num_particles)
        self.positions = torch.tensor(positions)

    def get_samples(self, num_samples: int | None = None) -> Any:
        return self.target.constrain(self.positions[:num_samples], self.data)


class GuideEngine(FixedEngine):
    """An engine with everything that the conversion looks for."""

    history: ClassVar[dict[str, list[float]]] = {"loss": [float(i) for i in range(50)]}

    def sample_statistics(self, positions: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"log_q": -0.5 * (positions**2).sum(-1)}

    def arviz_attributes(self) -> dict[str, Any]:
        return {"sample_kind": "independent draws", "converged": True, "rank": 2}


def converted(name: str, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The zoo's model as an ArviZ object, and its draws."""
    model, args = pyro_models.build(name), pyro_models.arguments(name)
    engine = FixedEngine(model, args, **zoo.ZOO[name].options)
    result = to_arviz(engine, *args, **zoo.ZOO[name].options, **options)
    draws = engine.get_samples()
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
    assert attributes["inference_library"] == "pyro_ext"


def test_leave_one_out_on_a_subsampled_model() -> None:
    name = "logistic_regression_subsampled"
    args, options = pyro_models.arguments(name), zoo.ZOO[name].options
    engine = FixedEngine(pyro_models.build(name), args, **options)
    engine.positions = torch.tensor(support.logistic_positions())
    draws = {site: np.asarray(v) for site, v in engine.get_samples().items()}
    result = to_arviz(engine, *args, **options)
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
    def model(y: torch.Tensor, subsample_size: int | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        plate = pyro.plate("N", len(y), subsample_size=subsample_size)
        with plate as rows:
            batch = y[rows]
        pyro.deterministic("mean", batch.mean() + mu)
        pyro.deterministic("table", torch.stack([batch, batch + mu], -1))
        with plate:
            pyro.sample("y", dist.Normal(mu, 1.0), obs=batch)

    y = torch.tensor(zoo.normal_rows())
    engine = FixedEngine(model, (y,), subsample_size=5)
    result = to_arviz(engine, y, subsample_size=5, data_chunk=5)
    mu = np.asarray(engine.positions[:, 0])
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


def test_network(tmp_path: Any) -> None:
    result, draws = converted("bnn", data_chunk=10)
    x, y = zoo.regression_rows()
    mean = support.network_mean(
        x,
        [np.swapaxes(draws[name], 1, 2) for name in ("fc1.weight", "fc2.weight")],
        [draws["fc1.bias"], draws["fc2.bias"]],
    )
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        stats.norm(mean, draws["sigma"][:, None]).logpdf(y),
        rtol=1e-8,
    )
    again = support.round_trip(result, tmp_path / "network.nc")
    np.testing.assert_array_equal(
        support.values(again, "posterior", "fc2.weight"), draws["fc2.weight"]
    )


def test_names_that_collide_once_they_are_safe() -> None:
    def model() -> None:
        pyro.sample("a/b", dist.Normal(0.0, 1.0))
        pyro.sample("a.b", dist.Normal(5.0, 1.0))
        pyro.sample("draw", dist.Normal(0.0, 1.0))

    engine = FixedEngine(model, ())
    result = to_arviz(engine)
    draws = engine.get_samples()
    np.testing.assert_array_equal(support.values(result, "posterior", "a.b"), draws["a.b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "a.b_2"), draws["a/b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "draw_2"), draws["draw"])


def test_posterior_predictive_has_the_models_distribution() -> None:
    class Repeated(FixedEngine):
        num_particles = 400

        def get_samples(self, num_samples: Any = None) -> Any:
            return {"mu": torch.full((400,), 2.0)}

    def model(y: torch.Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("N", len(y)):
            first = pyro.sample("first", dist.Normal(mu, 1.0), obs=y)
            pyro.sample("second", dist.Normal(first, 0.01), obs=y)

    y = torch.tensor(zoo.normal_rows())
    engine = Repeated(model, (y,))
    results = [to_arviz(engine, y, seed=seed) for seed in (0, 0, 1)]
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
    args, options = pyro_models.arguments(name), zoo.ZOO[name].options
    engine = GuideEngine(pyro_models.build(name), args, **options)
    result = to_arviz(engine, *args, draw_chunk=7, **options)
    log_p = sum(engine.target.full_log_prior_and_likelihood(engine.positions, engine.data))
    np.testing.assert_allclose(support.values(result, "sample_stats", "log_p"), log_p, rtol=1e-8)
    np.testing.assert_allclose(
        support.values(result, "sample_stats", "log_q"),
        -0.5 * (engine.positions.numpy() ** 2).sum(-1),
        rtol=1e-8,
    )
    assert support.group(result, "optimization")["loss"].dims == ("step",)
    np.testing.assert_array_equal(
        support.values(result, "optimization", "loss"), engine.history["loss"]
    )
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
    model, (x, y) = pyro_models.build(name), pyro_models.arguments(name)
    engine = FixedEngine(model, (x, y))
    with pytest.raises(ArgumentError, match=r"plate 'N' has 60 rows, found arguments with 15"):
        to_arviz(engine, x[:15], y[:15])
    draws = {site: np.asarray(v) for site, v in engine.get_samples().items()}
    np.testing.assert_allclose(
        support.values(to_arviz(engine, x, y), "log_likelihood", "y"),
        support.logistic_log_likelihood(draws["w"], draws["b"]),
        **ROUNDING,
    )


def test_missing_draws_are_named() -> None:
    class Forgetful(FixedEngine):
        def get_samples(self, num_samples: Any = None) -> Any:
            return {"w": torch.zeros(3, 3)}

    args = pyro_models.arguments("logistic_regression")
    engine = Forgetful(pyro_models.build("logistic_regression"), args)
    with pytest.raises(ArgumentError, match=r"found none for \['b'\]"):
        to_arviz(engine, *args)


def test_the_global_generator_and_parameter_store_are_left_alone() -> None:
    before = torch.random.get_rng_state()
    converted("conjugate_normal")
    assert torch.equal(before, torch.random.get_rng_state())
    assert not list(pyro.get_param_store().keys())


def test_svgd_is_converted_at_its_particles() -> None:
    name = "logistic_regression_subsampled"
    model, args = pyro_models.build(name), pyro_models.arguments(name)
    options = zoo.ZOO[name].options
    engine = SVGD(model, pyro.optim.Adam({"lr": 0.1}), num_particles=8)
    fit = engine.run(5, *args, progress_bar=False, **options)
    result = to_arviz(engine, *args, **options)
    draws = engine.get_samples()
    w, b = draws["w"].numpy(), draws["b"].numpy()
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
    for traces in (result, to_arviz(engine, *args, result=fit, **options)):
        np.testing.assert_array_equal(support.values(traces, "optimization", "loss"), fit.losses)
        np.testing.assert_array_equal(
            support.values(traces, "optimization", "force_norm"), fit.info["force_norm"]
        )
    attributes = support.group(result, "posterior").attrs
    assert (attributes["engine"], attributes["sample_kind"]) == ("SVGD", "particles")


def test_engine_fitted_on_batches_is_converted_on_the_full_data() -> None:
    name = "logistic_regression_batch_arguments"
    model, (x, y) = pyro_models.build(name), pyro_models.arguments(name)
    engine = SVGD(model, pyro.optim.Adam({"lr": 0.1}), num_particles=4)
    engine.run(3, x[:15], y[:15], progress_bar=False)
    draws = engine.get_samples()
    np.testing.assert_allclose(
        support.values(to_arviz(engine, x, y), "log_likelihood", "y"),
        support.logistic_log_likelihood(draws["w"].numpy(), draws["b"].numpy()),
        **ROUNDING,
    )


def test_new_observations_follow_the_draws_and_not_the_data() -> None:
    def model(y: torch.Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(m, 1.0), obs=y)

    y = torch.full((400,), 50.0)
    engine = SVGD(model, pyro.optim.Adam({"lr": 0.1}), num_particles=5, seed=0)
    engine.setup(y)
    predicted = support.values(to_arviz(engine, y), "posterior_predictive", "y")
    # Five standard errors of a mean of 400 unit normals.
    np.testing.assert_allclose(predicted.mean(1), engine.get_samples()["m"], atol=0.25)


def test_missing_observations_and_wrong_engines_are_told() -> None:
    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

    x = torch.arange(4.0)
    engine = SVGD(model, pyro.optim.Adam({"lr": 0.1}), num_particles=3, seed=0)
    engine.setup(x, x)
    with pytest.raises(ArgumentError, match=r"observations of site 'y'.*Predictive"):
        to_arviz(engine, x)
    with pytest.raises(ArgumentError, match="Expected an engine with a target"):
        to_arviz(model, x)
