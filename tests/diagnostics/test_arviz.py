"""Conversion to ArviZ: every group against values computed by hand, on all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.diagnostics import posterior as posterior_of
from ppl_ext.diagnostics.inference_data import Variable, inference_data
from ppl_ext.diagnostics.posterior import numbers_of
from ppl_ext.diagnostics.replay import Replay, told_of_outside
from ppl_ext.diagnostics.thinning import thinned
from ppl_ext.errors import ArgumentError, DataWarning
from tests import arviz_support as support
from tests.backends import from_zoo, use_float64
from tests.diagnostics.conftest import FixedEngine, StatisticsEngine
from tests.models import zoo

use_float64()

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]

ROUNDING = {"rtol": 1e-10, "atol": 1e-10}


def test_subsampled_model_is_converted_on_all_rows_in_order(host, backend, tmp_path: Any) -> None:
    result, draws = host.converted("logistic_regression_subsampled", data_chunk=7, draw_chunk=6)
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
    assert attributes["inference_library"] == f"{backend.name}_ext"


def test_leave_one_out_on_a_subsampled_model(host, backend) -> None:
    model, args, options = from_zoo(backend, "logistic_regression_subsampled")
    engine = host.fixed(model, args, positions=support.logistic_positions(), **options)
    draws = engine.draws
    result = engine.to_arviz(*args, **options)
    support.check_loo(result, support.logistic_log_likelihood(draws["w"], draws["b"]))


def test_log_prior_by_site_is_that_of_the_values_as_written(host) -> None:
    """Without Jacobians, on all rows of plates that draw minibatches, and in no scale."""
    result, draws = host.converted("local_positive_latents", data_chunk=3)
    np.testing.assert_allclose(
        support.values(result, "log_prior", "mu"), stats.norm.logpdf(draws["mu"]), **ROUNDING
    )
    expected = stats.lognorm(1.0, scale=np.exp(draws["mu"])[:, None]).logpdf(draws["rate"])
    np.testing.assert_allclose(support.values(result, "log_prior", "rate"), expected, **ROUNDING)
    assert support.group(result, "log_prior")["rate"].dims == ("chain", "draw", "N")
    # A site with an event has one number.
    result, draws = host.converted("logistic_regression_subsampled")
    expected = stats.norm.logpdf(draws["w"]).sum(-1)
    np.testing.assert_allclose(support.values(result, "log_prior", "w"), expected, **ROUNDING)
    without, _ = host.converted("logistic_regression_subsampled", log_prior=False)
    assert "log_prior" not in support.group_names(without)


def test_there_is_no_log_prior_of_what_is_summed_out_with_discrete_sites(host, backend) -> None:
    def independent(y: Any) -> None:
        mean = backend.host.sample("mean", backend.dist.Normal(0.0, 1.0))
        which = backend.host.sample("which", backend.dist.Bernoulli(0.3))
        backend.host.sample("y", backend.dist.Normal(mean + 1.0 * which, 1.0), obs=y)

    def tied(y: Any) -> None:
        which = backend.host.sample("which", backend.dist.Bernoulli(0.3))
        mean = backend.host.sample("mean", backend.dist.Normal(1.0 * which, 1.0))
        backend.host.sample("y", backend.dist.Normal(mean, 1.0), obs=y)

    y = backend.array(np.array(0.5))
    engine = host.fixed(independent, (y,))
    np.testing.assert_allclose(
        support.values(engine.to_arviz(y), "log_prior", "mean"),
        stats.norm.logpdf(engine.draws["mean"]),
        **ROUNDING,
    )
    assert "log_prior" not in support.group_names(host.fixed(tied, (y,)).to_arviz(y))


def test_groups_serve_what_arviz_does_with_them(host, backend) -> None:
    """Leave-one-out values, and how much the posterior depends on the prior."""
    model, args, options = from_zoo(backend, "logistic_regression_subsampled")
    engine = host.fixed(model, args, positions=support.logistic_positions(), **options)
    result = engine.to_arviz(*args, **options)
    prior, likelihood = support.sensitivity(result, ["w"])
    assert prior.shape == likelihood.shape == (3,)
    assert np.isfinite([prior, likelihood]).all() and (likelihood > 0.0).all()
    values = support.leave_one_out_values(result, "y")
    assert values.shape == (60,) and ((0.0 <= values) & (values <= 1.0)).all()


def test_two_subsampled_plates(host) -> None:
    result, draws = host.converted("nested_plates_subsampled", data_chunk=5)
    rows = zoo.crossed_rows()
    likelihood = support.group(result, "log_likelihood")["y"]
    assert likelihood.dims == ("chain", "draw", "rows", "columns")
    np.testing.assert_allclose(
        likelihood.values[0], support.normal_log_likelihood(rows, draws["mu"]), **ROUNDING
    )
    np.testing.assert_array_equal(support.values(result, "observed_data", "y"), rows)


def test_local_latents_meet_their_own_rows(host) -> None:
    result, draws = host.converted("local_latents", data_chunk=3)
    expected = stats.norm(draws["z"], 0.5).logpdf(zoo.local_rows())
    np.testing.assert_allclose(support.values(result, "log_likelihood", "y"), expected, **ROUNDING)
    assert support.group(result, "posterior")["z"].dims == ("chain", "draw", "N")


def test_sites_of_length_zero_have_their_draws() -> None:
    groups = {"posterior": {n: Variable(np.ones((6, k))) for n, k in (("w", 2), ("none", 0))}}
    posterior = support.group(inference_data(groups, {}, num_chains=3), "posterior")
    assert posterior["none"].shape == (3, 2, 0)
    assert posterior_of.variable(posterior, "none").shape == (6, 0)
    values, names = numbers_of(posterior)
    assert values["none"].shape == (6, 0) and names == {"w": ["w[0]", "w[1]"], "none": []}


def test_fewer_draws_are_held_against_supports_too() -> None:
    """The model without deterministic sites runs at the draws of the thinned groups alone."""
    draws = {"scale": np.array([1.0, 2.0, -1.0, 1.0, -2.0])}

    def replay(draws: Any, *, groups: Any) -> Replay:
        flags = draws["scale"] < 0.0
        return Replay({}, {}, outside={"scale": flags} if "log_likelihood" in groups else {})

    found = thinned(replay, draws, np.array([0, 2, 3]), ["log_likelihood", "deterministic"])
    assert told_of_outside(found.outside).endswith("1 of 5 draws of 'scale' (the first is draw 2).")


def test_deterministic_sites_are_on_all_rows(host) -> None:
    result, draws = host.converted("deterministic", data_chunk=5)
    residual = zoo.normal_rows()[None] - draws["mu"][:, None]
    np.testing.assert_allclose(
        support.values(result, "posterior", "residual"), residual, **ROUNDING
    )
    np.testing.assert_allclose(
        support.values(result, "posterior", "twice"), 2.0 * draws["mu"], **ROUNDING
    )
    support.use_plots(result, "mu", "y")


def test_deterministic_values_that_depend_on_the_rows_outside_a_plate(host, backend) -> None:
    primitives, normal = host.host, host.dist.Normal
    stack = host.backend.xp.stack

    def model(y: Any, subsample_size: int | None = None) -> None:
        mu = primitives.sample("mu", normal(0.0, 1.0))
        plate = primitives.plate("N", len(y), subsample_size=subsample_size)
        with plate as rows:
            batch = y[rows]
        primitives.deterministic("mean", batch.mean() + mu)
        primitives.deterministic("table", stack([batch, batch + mu], -1))
        with plate:
            primitives.sample("y", normal(mu, 1.0), obs=batch)

    rows = zoo.normal_rows()
    y = backend.array(rows)
    engine = host.fixed(model, (y,), subsample_size=5)
    result = engine.to_arviz(y, subsample_size=5, data_chunk=5)
    mu = engine.draws["mu"]
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


def test_masked_and_scaled_observations(host) -> None:
    masked, draws = host.converted("masked_observations")
    expected = support.normal_log_likelihood(zoo.normal_rows(), draws["mu"])
    np.testing.assert_allclose(
        support.values(masked, "log_likelihood", "y"), expected * zoo.normal_mask(), **ROUNDING
    )
    scaled, draws = host.converted("scaled_observations")
    np.testing.assert_allclose(
        support.values(scaled, "log_likelihood", "y"),
        support.normal_log_likelihood(zoo.normal_rows(), draws["mu"]),
        **ROUNDING,
    )


def test_network(host, backend, tmp_path: Any) -> None:
    """NumPyro's names of its parameters have slashes."""
    result, draws = host.converted("bnn", data_chunk=10)
    posterior = support.group(result, "posterior")
    if backend.name == "pyro":
        kernels = [np.swapaxes(draws[name], 1, 2) for name in ("fc1.weight", "fc2.weight")]
        biases = [draws["fc1.bias"], draws["fc2.bias"]]
        last, given = "fc2.weight", "fc2.weight"
    else:
        assert {"net.fc1.kernel", "net.fc1.bias", "sigma"} <= set(posterior.data_vars)
        assert '"net.fc1.kernel": "net/fc1.kernel"' in posterior.attrs["renamed"]
        kernels = [draws["net/fc1.kernel"], draws["net/fc2.kernel"]]
        biases = [draws["net/fc1.bias"], draws["net/fc2.bias"]]
        last, given = "net.fc2.kernel", "net/fc2.kernel"
    x, y = zoo.regression_rows()
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        stats.norm(support.network_mean(x, kernels, biases), draws["sigma"][:, None]).logpdf(y),
        rtol=1e-8,
    )
    again = support.round_trip(result, tmp_path / "network.nc")
    np.testing.assert_array_equal(support.values(again, "posterior", last), draws[given])


def test_names_that_collide_once_they_are_safe(host) -> None:
    def model() -> None:
        host.host.sample("a/b", host.dist.Normal(0.0, 1.0))
        host.host.sample("a.b", host.dist.Normal(5.0, 1.0))
        host.host.sample("draw", host.dist.Normal(0.0, 1.0))

    engine = host.fixed(model, ())
    result, draws = engine.to_arviz(), engine.draws
    np.testing.assert_array_equal(support.values(result, "posterior", "a.b"), draws["a.b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "a.b_2"), draws["a/b"])
    np.testing.assert_array_equal(support.values(result, "posterior", "draw_2"), draws["draw"])


def test_posterior_predictive_has_the_models_distribution(host, backend) -> None:
    def model(y: Any) -> None:
        mu = host.host.sample("mu", host.dist.Normal(0.0, 3.0))
        with host.host.plate("N", len(y)):
            first = host.host.sample("first", host.dist.Normal(mu, 1.0), obs=y)
            host.host.sample("second", host.dist.Normal(first, 0.01), obs=y)

    # Far from the draws: new observations follow these and not the data.
    y = backend.array(zoo.normal_rows() + 50.0)
    engine = host.fixed(model, (y,), positions=np.full((400, 1), 2.0))
    results = [engine.to_arviz(y, **host.seed(seed)) for seed in (0, 0, 1)]
    first, same, other = (
        support.values(result, "posterior_predictive", "first") for result in results
    )
    np.testing.assert_array_equal(first, same)
    assert not np.any(first == other)
    # No two draws, and no two rows of a draw, have the same noise.
    assert len(np.unique(first)) == first.size
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


def test_statistics_losses_and_attributes_of_an_engine(backend) -> None:
    model, args, options = from_zoo(backend, "logistic_regression_subsampled")
    engine = StatisticsEngine(backend, model, args, **options)
    losses = np.arange(50.0)
    result = engine.to_arviz(*args, losses=losses, draw_chunk=7, **options)
    log_p = sum(engine.target.full_log_prior_and_likelihood(engine.positions, engine.data))
    np.testing.assert_allclose(
        support.values(result, "sample_stats", "log_p"), backend.numpy(log_p), rtol=1e-8
    )
    np.testing.assert_allclose(
        support.values(result, "sample_stats", "log_q"),
        -0.5 * (backend.numpy(engine.positions) ** 2).sum(-1),
        rtol=1e-8,
    )
    assert support.group(result, "optimization")["loss"].dims == ("step",)
    np.testing.assert_array_equal(support.values(result, "optimization", "loss"), losses)
    attributes = support.group(result, "posterior").attrs
    assert attributes["sample_kind"] == "independent draws"
    assert (attributes["converged"], attributes["rank"]) == (1, 2)


@pytest.mark.skipif(
    support.MAJOR < 1, reason="ArviZ has loo_approximate_posterior from version 1 on"
)
def test_leave_one_out_of_an_approximation(backend) -> None:
    """By the draws' own statistics, against the closed form; the draws are too wide."""
    y = zoo.normal_rows()
    variance = 1.0 / (len(y) + 1.0 / 9.0)
    mean, spread = variance * y.sum(), 2.0 * np.sqrt(variance)

    class Wide(StatisticsEngine):
        def sample_statistics(self, *state_and_positions: Any) -> dict[str, Any]:
            return {"log_q": -0.5 * (((state_and_positions[-1] - mean) / spread) ** 2).sum(-1)}

    model, args, options = from_zoo(backend, "conjugate_normal")
    positions = mean + spread * np.random.default_rng(0).normal(size=(4000, 1))
    engine = Wide(backend, model, args, positions=positions, **options)
    result = engine.to_arviz(*args, **options)
    statistics = support.group(result, "sample_stats")
    ratios = statistics["log_p"], statistics["log_q"]
    found = support.arviz.loo_approximate_posterior(result, *ratios)
    left = 1.0 / (1.0 / variance - 1.0)
    expected = stats.norm(left * (y.sum() - y), np.sqrt(1.0 + left)).logpdf(y).sum()
    assert abs(found.elpd - expected) < 0.05
    # Without the ratios these draws stand for the posterior.
    assert abs(support.arviz.loo(result).elpd - expected) > 0.3


def test_groups_can_be_left_out_and_draws_limited(host) -> None:
    result, _ = host.converted(
        "conjugate_normal",
        num_samples=6,
        posterior_predictive=False,
        log_likelihood=False,
        log_prior=False,
        observed_data=False,
        sample_stats=False,
        constant_data=False,
    )
    assert support.group_names(result) == {"posterior"}
    assert support.values(result, "posterior", "mu").shape == (6,)


def test_dims_coords_and_constant_data_can_be_given(host) -> None:
    labels, converted = ["age", "weight", "height"], host.converted
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
    assert support.group(namesake, "constant_data")["N"].dims == ("N_dim_0", "N_dim_1")
    assert support.group(namesake, "observed_data")["y"].dims == ("N",)
    with pytest.raises(ValueError, match="no variables"):
        converted("conjugate_normal", dims={"nothing": ["N"]})
    # Labels of dimensions that another model has, and names of sites that no group has.
    spared, _ = converted(
        "conjugate_normal",
        coords={"nothing": [1], "N": np.arange(12)},
        dims={"y": ["N"]},
        **dict.fromkeys(("posterior_predictive", "log_likelihood", "observed_data"), False),
    )
    assert "nothing" not in support.group(spared, "posterior").coords
    with pytest.raises(ValueError, match="Expected 12 labels"):
        converted("conjugate_normal", coords={"N": [1, 2]})
    with pytest.raises(ValueError, match="Expected 1 dims"):
        converted("conjugate_normal", dims={"y": ["row", "column"]})


def test_axes_have_the_names_that_the_model_gives(host, backend) -> None:
    """Of plates, one with the name of an argument and one with that of a site, and of events."""
    sample, plate, dist = host.host.sample, host.host.plate, host.dist

    def model(school: Any, x: Any, y: Any) -> None:
        with plate("school", 3):
            level = sample("level", dist.Normal(0.0, 1.0))
        prior = dist.Normal(backend.array(np.zeros((2, 4))), 1.0)
        w = sample("w", prior.to_event(2), infer={"event_dims": ["input"]})
        # In NumPyro plates and sites have different names.
        with plate("scale" if backend.is_pyro else "scales", 2):
            sample("scale", dist.HalfNormal(1.0))
        with plate("rows", 5):
            mean = x @ w + level[school][:, None]
            event = dist.Normal(mean, 1.0).to_event(1)
            sample("y", event, obs=y, infer={"event_dims": ["output"]})

    school = backend.array(np.array([0, 1, 2, 1, 0]))
    args = school, backend.array(np.ones((5, 2))), backend.array(np.ones((5, 4)))
    names = {"school": ["A", "B", "C"], "output": list("pqrs")}
    engine = host.fixed(model, args)
    found = engine.to_arviz(*args, coords=names)
    dims = {
        ("posterior", "level"): ("school",),
        ("posterior", "w"): ("input", "w_dim_1"),
        ("posterior", "scale"): ("scale_plate" if backend.is_pyro else "scales",),
        ("posterior_predictive", "y"): ("rows", "output"),
        ("log_likelihood", "y"): ("rows",),
        ("log_prior", "level"): ("school",),
    }
    for (group, name), axes in dims.items():
        assert support.group(found, group)[name].dims == ("chain", "draw", *axes)
    assert support.group(found, "observed_data")["y"].dims == ("rows", "output")
    assert support.group(found, "constant_data")["school"].dims == ("rows",)
    level = support.group(found, "posterior")["level"].sel(school="B").values.ravel()
    np.testing.assert_array_equal(level, engine.draws["level"][:, 1])


def test_names_of_axes_that_do_not_fit_are_refused(host, backend) -> None:
    y = backend.array(np.ones(2))

    def converted(names: list[str], **options: Any) -> None:
        def model(y: Any) -> None:
            for name, size in (("a", 3), ("b", 2)):
                prior = host.dist.Normal(backend.array(np.zeros(size)), 1.0).to_event(1)
                host.host.sample(name, prior, infer={"event_dims": names})
            with host.host.plate("rows", 2):
                host.host.sample("y", host.dist.Normal(0.0, 1.0), obs=y)

        host.fixed(model, (y,)).to_arviz(y, **options)

    with pytest.raises(ArgumentError, match=r"at most 1 names in infer=.* of site 'a'"):
        converted(["feature", "more"])
    with pytest.raises(ArgumentError, match=r"'feature' to have one length in group posterior"):
        converted(["feature"])
    with pytest.raises(ArgumentError, match=r"names that no variable of group posterior has"):
        converted([], dims={"a": ["b"]})
    with pytest.raises(
        ArgumentError, match=r"Expected dims\['a'\] to be a list of names, found 'b'"
    ):
        converted([], dims={"a": "b"})
    with pytest.raises(
        ArgumentError, match=r"Expected coords\['rows'\] to be a list of labels, found 3"
    ):
        converted([], coords={"rows": 3})


def test_a_prior_written_as_an_observation_is_no_data(host, backend) -> None:
    sample, plate, dist, xp = host.host.sample, host.host.plate, host.dist, backend.xp

    def model(y: Any, z: Any) -> None:
        log_scale = sample("log_scale", dist.Normal(0.0, 1.0))
        unseen = sample("unseen", dist.Normal(0.0, 1.0))
        scale = sample("scale", dist.HalfNormal(1.0), obs=xp.exp(log_scale))
        with plate("rows", 40):
            sample("y", dist.Normal(0.0, scale), obs=y)
            # A few values that are filled in leave a site observed.
            filled = xp.where(z != z, unseen, z)
            sample("z", dist.Normal(0.0, 1.0), obs=filled)

    z = np.where(np.arange(40) == 3, np.nan, 0.5)
    args = backend.array(np.zeros(40)), backend.array(z)
    positions = np.column_stack([np.linspace(-9.0, -8.0, 20), np.zeros(20)])
    with pytest.warns(DataWarning, match="1 of 40 values of 'z' change with the latent sites"):
        found = host.fixed(model, args, positions=positions).to_arviz(*args)
    # Where nothing is said of the values themselves there is nothing to be told.
    host.fixed(model, args, positions=positions).to_arviz(*args, log_likelihood=False)
    scale = np.exp(positions[:, 0])
    np.testing.assert_allclose(support.values(found, "posterior", "scale"), scale)
    expected = stats.halfnorm.logpdf(scale)
    np.testing.assert_allclose(support.values(found, "log_likelihood", "scale"), expected)
    for group in ("observed_data", "posterior_predictive"):
        assert set(support.group(found, group).data_vars) == {"y", "z"}
    # Its value is that of the draw, and not a new one, wherever the model goes on with it.
    new = support.values(found, "posterior_predictive", "y")
    assert (np.abs(new) < 6.0 * scale[:, None]).all()


def test_batches_as_arguments_need_the_full_data(host, backend) -> None:
    model, (x, y), _ = from_zoo(backend, "logistic_regression_batch_arguments")
    engine = host.fixed(model, (x, y))
    with pytest.raises(ArgumentError, match=r"plate 'N' has 60 rows, found arguments with 15"):
        engine.to_arviz(x[:15], y[:15])
    draws = engine.draws
    np.testing.assert_allclose(
        support.values(engine.to_arviz(x, y), "log_likelihood", "y"),
        support.logistic_log_likelihood(draws["w"], draws["b"]),
        **ROUNDING,
    )


def test_missing_draws_are_named(backend) -> None:
    class Forgetful(FixedEngine):
        def get_samples(self, *args: Any, **kwargs: Any) -> Any:
            return {"w": backend.array(np.zeros((3, 3)))}

    model, args, _ = from_zoo(backend, "logistic_regression")
    with pytest.raises(ArgumentError, match=r"found none for \['b'\]"):
        Forgetful(backend, model, args).to_arviz(*args)


def test_svgd_is_converted_at_its_particles(host, backend) -> None:
    model, args, options = from_zoo(backend, "logistic_regression_subsampled")
    fit = host.particles(8, *args, steps=5, model=model, **options)
    engine, to_arviz = fit[0], host.public.to_arviz
    # The result brings its trace along.
    result, draws = to_arviz(*fit, *args, **options), host.draws(fit)
    w, b = draws["w"], draws["b"]
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
    attributes = support.group(result, "posterior").attrs
    assert (attributes["engine"], attributes["sample_kind"]) == ("SVGD", "particles")

    brief = {"posterior_predictive": False, "log_likelihood": False, **options}
    if backend.name == "pyro":
        traces = {name: np.asarray(values) for name, values in engine.history.items()}
        results = [result]
    else:
        traces = {"loss": fit[1].losses, **fit[1].info}
        results = [result, to_arviz(engine, fit[1].state, *args, result=fit[1], **brief)]
        lone = to_arviz(engine, fit[1].state, *args, losses=fit[1].losses, **brief)
        assert set(support.group(lone, "optimization").data_vars) == {"loss"}
    for converted in results:
        np.testing.assert_array_equal(support.values(converted, "posterior", "w"), w)
        steps = support.group(converted, "optimization")
        assert set(steps.data_vars) == {"loss", "force_norm"}
        assert steps["force_norm"].dims == ("step",)
        for name, values in traces.items():
            assert values.shape == (5,)
            np.testing.assert_array_equal(steps[name].values, values)
    with pytest.raises(ArgumentError, match="Expected losses of the 5 steps, found 2"):
        to_arviz(*fit, *args, losses=[1.0, 2.0], **options)


def test_engine_fitted_on_batches_is_converted_on_the_full_data(host, backend) -> None:
    model, (x, y), _ = from_zoo(backend, "logistic_regression_batch_arguments")
    fit = host.particles(4, x[:15], y[:15], steps=3, model=model)
    result, draws = host.public.to_arviz(*fit, x, y), host.draws(fit)
    np.testing.assert_allclose(
        support.values(result, "log_likelihood", "y"),
        support.logistic_log_likelihood(draws["w"], draws["b"]),
        **ROUNDING,
    )


def test_what_is_no_engine_or_no_result_is_refused(host, backend) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    state = () if backend.name == "pyro" else (None,)
    for wrong in ({}, model):
        with pytest.raises(ArgumentError, match="Expected an engine .* found (dict|function)"):
            host.public.to_arviz(wrong, *state, *args)
    if backend.name == "numpyro":
        engine = host.public.SVGD(model, backend.adam(0.1), num_particles=2)
        with pytest.raises(RuntimeError, match="has not seen"):
            host.public.to_arviz(engine, None, *args)
        with pytest.raises(ArgumentError, match="Expected result .* found list"):
            host.fixed(model, args).to_arviz(*args, result=[1.0])


def test_missing_observations_are_named(host, backend) -> None:
    def model(x: Any, y: Any = None) -> None:
        w = host.host.sample("w", host.dist.Normal(0.0, 1.0))
        with host.host.plate("N", len(x)):
            host.host.sample("y", host.dist.Normal(w * x, 1.0), obs=y)

    x = backend.array(np.linspace(0.0, 1.0, 6))

    def successes(x: Any, y: Any = None) -> None:
        # Without observations these could be summed out.
        w = host.host.sample("w", host.dist.Normal(0.0, 1.0))
        with host.host.plate("N", len(x)):
            host.host.sample("y", host.dist.Binomial(5, logits=w * x), obs=y)

    words = r"observations of site 'y', .* found none.*Predictive\(model, posterior_samples="
    y = backend.array(np.arange(6) // 2.0)
    for each in (model, successes):
        with pytest.raises(ArgumentError, match=words):
            host.fixed(each, (x, y)).to_arviz(x)


# -- in one package ------------------------------------------------------------------------------


def test_the_global_generator_and_parameter_store_are_left_alone(host, backend) -> None:
    if backend.name != "pyro":
        pytest.skip("JAX has no global generator")
    import torch

    before = torch.random.get_rng_state()
    host.converted("conjugate_normal")
    assert torch.equal(before, torch.random.get_rng_state())
    assert not list(host.host.get_param_store().keys())


def test_scan(host, backend) -> None:
    if backend.name != "numpyro":
        pytest.skip("Pyro has no scan")
    result, draws = host.converted("scan_autoregression")
    expected = stats.norm(draws["x"], zoo.AR_NOISE_STD).logpdf(zoo.series())
    np.testing.assert_allclose(support.values(result, "log_likelihood", "y"), expected, **ROUNDING)
    assert support.values(result, "posterior_predictive", "y").shape == (20, 15)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_observations_are_no_constants_though_jax_has_converted_them(
    host, backend, dtype: Any
) -> None:
    if backend.name != "numpyro":
        pytest.skip("torch keeps the precision of arguments")
    import jax
    import jax.numpy as jnp

    def model(x: Any, y: Any) -> None:
        w = host.host.sample("w", host.dist.Normal(0.0, 1.0))
        with host.host.plate("N", len(x)):
            host.host.sample("y", host.dist.Normal(w * x, 1.0), obs=jnp.asarray(y, float)[:, 0])

    with jax.enable_x64(False):
        x, y = np.linspace(0.0, 1.0, 6), np.array([0.1, 1.3, -2.7, 3.9, 16.1, 5.0]).astype(dtype)
        result = host.fixed(model, (x, y[:, None])).to_arviz(x, y[:, None])
    assert set(support.group(result, "constant_data").data_vars) == {"x"}
