"""Judging predictions, which no host has a part in: figures by hand and by other libraries."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn import calibration, metrics
from torchmetrics.functional import classification, regression

from ppl_ext.diagnostics.calibration import calibration_curve, calibration_error
from ppl_ext.diagnostics.plots import (
    plot_reliability,
    plot_selective_prediction,
    plot_uncertainty,
)
from ppl_ext.diagnostics.predictive_data import (
    mixture_log_likelihood,
    predictive_dataset,
    to_original_units,
)
from ppl_ext.diagnostics.predictive_metrics import predictive_metrics
from ppl_ext.diagnostics.uncertainty import (
    out_of_distribution_score,
    selective_prediction_curve,
    uncertainty_score,
    uncertainty_split,
)
from ppl_ext.errors import ArgumentError
from tests import arviz_support as support

pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]


def classes(probabilities: Any, observed: Any) -> Any:
    """A dataset of class probabilities (S, N, K) and classes (N,)."""
    probabilities, observed = np.asarray(probabilities, float), np.asarray(observed)
    chosen = np.take_along_axis(probabilities, observed[None, :, None], -1)[..., 0]
    with np.errstate(divide="ignore"):
        log_likelihood = np.log(chosen)
    terms = {"probabilities": probabilities}
    return predictive_dataset("y", observed.shape, terms, log_likelihood, observed)


def numbers(mean: Any, scale: Any, observed: Any) -> Any:
    """A dataset of Normals with means and standard deviations (S, N) at observations (N,)."""
    mean, scale = np.broadcast_arrays(np.asarray(mean, float), scale)
    normal = stats.norm(mean, scale)
    terms = {"mean": mean, "variance": scale**2, "cdf": normal.cdf(observed)}
    observed = np.asarray(observed, float)
    return predictive_dataset("y", observed.shape, terms, normal.logpdf(observed), observed)


def some_classes(number: int, rows: int = 400) -> Any:
    rng = np.random.default_rng(number)
    logits = 2.0 * rng.normal(size=(1, rows, number)) + rng.normal(size=(6, rows, number))
    draws = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    # Draws that are right more often than chance, but too sure.
    truth = np.array([rng.choice(number, p=p) for p in 0.6 * draws.mean(0) + 0.4 / number])
    return classes(draws, truth)


def some_numbers() -> Any:
    rng = np.random.default_rng(3)
    mean = rng.normal(size=(1, 60)) + rng.normal(size=(5, 60)) * rng.uniform(0.2, 1.5, size=60)
    return numbers(mean, rng.uniform(0.3, 2.0, size=(5, 60)), rng.standard_t(4, size=60))


@pytest.mark.parametrize("number", [2, 4])
def test_figures_of_classes_agree_with_other_libraries(number: int) -> None:
    predictive = some_classes(number)
    mixture = predictive["probabilities"].mean("draw").values
    truth = predictive["observed"].values
    found = predictive_metrics(predictive)
    one_hot = np.eye(number)[truth]
    expected = {
        "log_likelihood": -metrics.log_loss(truth, mixture),
        "accuracy": metrics.accuracy_score(truth, mixture.argmax(1)),
        # Of two columns, the sum over classes is the sum over both.
        "brier": number * metrics.mean_squared_error(one_hot, mixture),
        "auroc": metrics.roc_auc_score(
            truth, mixture if number > 2 else mixture[:, 1], multi_class="ovr"
        ),
        "calibration_error": classification.multiclass_calibration_error(
            torch.tensor(mixture), torch.tensor(truth), num_classes=number, n_bins=15
        ).item(),
    }
    assert set(found.data_vars) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, rtol=0, err_msg=name)
    if number == 2:
        brier = 2 * metrics.brier_score_loss(truth, mixture[:, 1])
        np.testing.assert_allclose(found["brier"], brier, atol=1e-6, rtol=0)
    torch_area = classification.multiclass_auroc(
        torch.tensor(mixture), torch.tensor(truth), num_classes=number, average="macro"
    )
    np.testing.assert_allclose(found["auroc"], torch_area, atol=1e-6, rtol=0)


@pytest.mark.parametrize("binning, strategy", [("width", "uniform"), ("mass", "quantile")])
def test_calibration_curve_is_that_of_scikit_learn(binning: str, strategy: str) -> None:
    predictive = some_classes(2)
    curve = calibration_curve(predictive, num_bins=7, binning=binning, label=np.int64(1))
    frequency, confidence = calibration.calibration_curve(
        predictive["observed"].values,
        predictive["probabilities"].mean("draw").values[:, 1],
        n_bins=7,
        strategy=strategy,
    )
    np.testing.assert_allclose(curve["frequency"], frequency, atol=1e-12)
    np.testing.assert_allclose(curve["confidence"], confidence, atol=1e-12)
    assert int(curve["rows"].sum()) == predictive.sizes["row"]
    if binning == "mass":
        # 400 rows; an edge that is a row's own probability has it on either side, by rounding.
        np.testing.assert_allclose(curve["rows"], 400 / 7, atol=1.5)


def test_calibration_error_by_hand() -> None:
    # Confidences 0.6, 0.7 (right, wrong) and 0.9 (right): bins (0.5, 0.75] and (0.75, 1].
    one = classes([[[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]]], [0, 0, 0])
    curve = calibration_curve(one, num_bins=4)
    np.testing.assert_allclose(curve["confidence"], [np.nan, np.nan, 0.65, 0.9])
    np.testing.assert_allclose(curve["frequency"], [np.nan, np.nan, 0.5, 1.0])
    assert calibration_error(curve) == pytest.approx((2 * 0.15 + 0.1) / 3)


def test_entropy_of_classes_by_hand() -> None:
    # Draws that are sure of different classes; draws that are unsure alike; one of each.
    one = classes(
        [[[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]], [0, 1, 1]
    )
    split = uncertainty_split(one)
    both = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(split["total"], [np.log(2), np.log(2), both])
    np.testing.assert_allclose(split["aleatoric"], [0.0, np.log(2), np.log(2) / 2])
    np.testing.assert_allclose(split["epistemic"], [np.log(2), 0, both - np.log(2) / 2], atol=1e-15)
    # The likelihood is that of the mixture: log(1/2), log(1/2), log((0 + 1/2) / 2).
    assert float(predictive_metrics(one)["log_likelihood"]) == pytest.approx(-np.log(16) / 3)
    np.testing.assert_allclose(uncertainty_score(one, "max_probability"), [0.5, 0.5, 0.25])


@pytest.mark.parametrize(
    "predictive", [some_classes(5), some_numbers()], ids=["classes", "numbers"]
)
def test_aleatoric_and_epistemic_add_up_to_the_total(predictive: Any) -> None:
    split = uncertainty_split(predictive)
    np.testing.assert_allclose(split["aleatoric"] + split["epistemic"], split["total"], rtol=1e-13)
    if "mean" in predictive:
        # Moments of the mixture about zero, in place of the law of total variance.
        second = (predictive["variance"] + predictive["mean"] ** 2).mean("draw")
        total, epistemic = second - predictive["mean"].mean("draw") ** 2, predictive["mean"]
        epistemic = np.var(epistemic.values, axis=0)
    else:
        mixture = predictive["probabilities"].mean("draw").values
        total = stats.entropy(mixture, axis=-1)
        epistemic = stats.entropy(predictive["probabilities"].values, mixture[None], axis=-1).mean(
            0
        )
    np.testing.assert_allclose(split["total"], total, rtol=1e-10)
    np.testing.assert_allclose(split["epistemic"], epistemic, rtol=1e-10)


def test_figures_of_numbers() -> None:
    predictive = some_numbers()
    mean, truth = predictive["mean"].values, predictive["observed"].values
    deviation = np.sqrt(predictive["variance"].values)
    found = predictive_metrics(predictive, num_bins=10)
    density = stats.norm.pdf(truth, mean, deviation).mean(0)
    np.testing.assert_allclose(mixture_log_likelihood(predictive), np.log(density), rtol=1e-12)
    np.testing.assert_allclose(found["log_likelihood"], np.log(density).mean(), rtol=1e-12)
    rmse = metrics.root_mean_squared_error(truth, mean.mean(0))
    np.testing.assert_allclose(found["rmse"], rmse, rtol=1e-12)
    squared = regression.mean_squared_error(torch.tensor(mean.mean(0)), torch.tensor(truth))
    np.testing.assert_allclose(found["rmse"] ** 2, squared, atol=1e-6)

    # Coverage by the ends of the intervals, found as quantiles of the mixture.
    def quantile(p: float, row: int) -> float:
        def gap(y: float) -> float:
            return float(stats.norm.cdf(y, mean[:, row], deviation[:, row]).mean() - p)

        return float(optimize.brentq(gap, -50.0, 50.0))

    curve = calibration_curve(predictive, num_bins=10)
    np.testing.assert_allclose(curve["level"], np.arange(1, 10) / 10)
    for level, coverage in zip([0.3, 0.8], curve["coverage"].values[[2, 7]], strict=True):
        inside = [
            quantile((1 - level) / 2, row) <= y <= quantile((1 + level) / 2, row)
            for row, y in enumerate(truth)
        ]
        assert coverage == np.mean(inside)
    expected = np.abs(curve["coverage"] - curve["level"]).mean()
    np.testing.assert_allclose(found["calibration_error"], expected)


def test_original_units() -> None:
    predictive = some_numbers()
    mean, truth = predictive["mean"].values, predictive["observed"].values
    deviation = np.sqrt(predictive["variance"].values)
    direct = numbers(3.0 * mean - 7.0, 3.0 * deviation, 3.0 * truth - 7.0)
    found = to_original_units(predictive, -7.0, 3.0)
    for variable in direct:
        np.testing.assert_allclose(found[variable], direct[variable], rtol=1e-10, atol=1e-12)
    assert float(found["log_likelihood"][0, 0]) < float(predictive["log_likelihood"][0, 0])

    # A scaler of one column gives arrays of one number: rows without outputs stay so.
    same = to_original_units(predictive, np.array([-7.0]), np.array([3.0]))
    assert same.identical(found)

    # Two outputs with units of their own: the log density of a row loses both logarithms.
    mean, truth = mean.reshape(5, 30, 2), truth.reshape(30, 2)
    terms = {"mean": mean, "variance": np.ones_like(mean)}
    log_density = stats.norm.logpdf(truth, mean).sum(-1)
    pairs = predictive_dataset("y", (30,), terms, log_density, truth)
    found = to_original_units(pairs, np.array([1.0, 0.0]), np.array([2.0, 5.0]))
    np.testing.assert_allclose(found["log_likelihood"], log_density - np.log(10.0))
    np.testing.assert_allclose(found["mean"][..., 1], 5.0 * mean[..., 1])
    np.testing.assert_allclose(found["variance"][..., 0], 4.0)
    error = (mean.mean(0) - truth) * [2.0, 5.0]
    rmse = predictive_metrics(found)["rmse"]
    np.testing.assert_allclose(rmse, np.sqrt(np.square(error).mean()))
    assert uncertainty_score(pairs).dims == ("row",)
    # A variance that is not known makes its row's unknown, as that of a single output does.
    pairs["variance"][:, 3, 1] = np.nan
    unknown = np.isnan(uncertainty_score(pairs))
    assert unknown[3] and unknown.sum() == 1
    single = to_original_units(pairs, 0.0, np.array([2.0]))
    np.testing.assert_allclose(single["log_likelihood"], log_density - 2.0 * np.log(2.0))
    for location, scale in ((0.0, np.ones(3)), (np.zeros((2, 1)), 1.0)):
        with pytest.raises(ArgumentError, match="or one for each of 2 outputs, found an array of"):
            to_original_units(pairs, location, scale)


def test_selective_prediction_by_hand() -> None:
    # In the order of uncertainty: right, (wrong, right) alike, wrong.
    one = classes([[[0.8, 0.2], [0.05, 0.95], [0.4, 0.6], [0.2, 0.8]]], [1, 1, 0, 1])
    curve = selective_prediction_curve(one)
    np.testing.assert_allclose(curve["coverage"], [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve["risk"], [0.0, 0.25, 1 / 3, 0.5])
    np.testing.assert_allclose(curve["oracle_risk"], [0.0, 0.0, 1 / 3, 0.5])
    assert float(curve["excess_area"]) == pytest.approx(0.0625)

    # Of numbers the root mean squared error; deviations 1, 2, 3 rank errors of 2, 1, 3 not quite.
    three = numbers([[0.0, 0.0, 0.0]], [[1.0, 2.0, 3.0]], [2.0, -1.0, 3.0])
    curve = selective_prediction_curve(three)
    np.testing.assert_allclose(curve["risk"], np.sqrt([4.0, 2.5, 14 / 3]))
    np.testing.assert_allclose(curve["oracle_risk"], np.sqrt([1.0, 2.5, 14 / 3]))
    assert float(curve["area"]) == pytest.approx(np.sqrt([4.0, 2.5, 14 / 3]).mean())


@pytest.mark.parametrize("measure", ["total", "epistemic", "max_probability"])
def test_scores_outside_the_data(measure: str) -> None:
    inside, outside = some_classes(3), some_classes(4, rows=90)
    found = out_of_distribution_score(inside, outside, measure=measure)
    pairs = stats.mannwhitneyu(found["outside"], found["inside"]).statistic
    np.testing.assert_allclose(found["auroc"], pairs / (400 * 90), atol=1e-12)
    assert found["inside"].shape == (400,) and found["outside"].shape == (90,)
    same = out_of_distribution_score(inside, inside, measure=measure)
    assert float(same["auroc"]) == pytest.approx(0.5)


def test_rows_that_a_mask_hides_are_left_out() -> None:
    mean = np.arange(8.0).reshape(2, 4)
    mask = np.broadcast_to([True, False, True, True], (2, 4))
    terms = {"mean": mean, "variance": mean + 1, "mask": mask}
    found = predictive_dataset("y", (4,), terms, mean, np.arange(4.0))
    np.testing.assert_array_equal(found["row"], [0, 2, 3])
    np.testing.assert_array_equal(found["mean"], mean[:, [0, 2, 3]])
    terms = {name: value.reshape(2, 2, 2) for name, value in terms.items()}
    with pytest.raises(ArgumentError, match="found rows of which it hides a part"):
        predictive_dataset("y", (2,), terms, None, None)


def test_plots_show_the_numbers() -> None:
    several, single = some_classes(3), some_numbers()
    _, axes = plt.subplots(2, 3)
    plot_reliability(several, ax=axes[0, 0])
    curve = calibration_curve(several)
    filled = curve["rows"].values > 0
    drawn = axes[0, 0].lines[1].get_xydata()
    np.testing.assert_allclose(drawn[:, 0], curve["confidence"].values[filled])
    np.testing.assert_allclose(drawn[:, 1], curve["frequency"].values[filled])
    assert len(axes[0, 0].patches) == 15

    plot_reliability(single, num_bins=5, ax=axes[0, 1])
    coverage = calibration_curve(single, num_bins=5)["coverage"]
    np.testing.assert_allclose(axes[0, 1].lines[1].get_ydata(), coverage)

    plot_selective_prediction({"one": several, "two": several}, ax=axes[0, 2])
    assert len(axes[0, 2].lines) == 4 and axes[0, 2].get_ylabel() == "error rate"
    assert len(plot_selective_prediction(single).lines) == 2

    x = np.random.default_rng(0).permutation(60)
    plot_uncertainty(single, x, ax=axes[1, 0])
    line, dots = axes[1, 0].lines
    mean = single["mean"].mean("draw").values
    np.testing.assert_allclose(line.get_ydata(), mean[np.argsort(x)])
    np.testing.assert_allclose(dots.get_ydata(), single["observed"].values[np.argsort(x)])
    total = axes[1, 0].collections[0].get_paths()[0].vertices[:, 1].max()
    spread = 2.0 * np.sqrt(uncertainty_split(single)["total"].values)
    np.testing.assert_allclose(total, (mean + spread).max())

    plot_uncertainty(several, ax=axes[1, 1])
    top = axes[1, 1].collections[1].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(top, uncertainty_split(several)["total"].max())
    plt.close("all")


def test_messages() -> None:
    several, single = some_classes(3), some_numbers()
    unseen = single.drop_vars(["observed", "log_likelihood", "cdf"])
    calls = {
        "Expected the observations of site 'y' for predictive metrics": (
            lambda: predictive_metrics(unseen)
        ),
        "for the error of the predictions, found none": (
            lambda: selective_prediction_curve(unseen)
        ),
        "Expected the observations of site 'y' for calibration": (
            lambda: calibration_curve(unseen)
        ),
        "Expected the distribution function of site 'y'": (
            lambda: calibration_curve(single.drop_vars("cdf"))
        ),
        "Expected the dataset that predictive_distribution returns": (
            lambda: uncertainty_split({"mean": 1.0})
        ),
        "found classes and numbers": lambda: out_of_distribution_score(several, single),
        "Expected class probabilities for measure='max_probability'": (
            lambda: uncertainty_score(single, "max_probability")
        ),
        "Expected measure to be one of": lambda: uncertainty_score(single, "entropy"),
        "Expected binning to be one of": lambda: calibration_curve(several, binning="rows"),
        "Expected num_bins to be an int >= 2": lambda: predictive_metrics(several, num_bins=1),
        "Expected label to be a class from 0 to 2": lambda: calibration_curve(several, label=3),
        "Expected no label": lambda: calibration_curve(single, label=1),
        "Expected observed classes 0 to 2, found values from 0 to 9": (
            lambda: predictive_metrics(several.assign(observed=several["observed"] * 9 // 2))
        ),
        "Expected a positive scale": lambda: to_original_units(single, 0.0, -1.0),
        "Expected the predictions of a continuous site": (
            lambda: to_original_units(several, 0.0, 1.0)
        ),
        "Expected x of 60 rows": lambda: plot_uncertainty(single, [1.0]),
        "Expected one output for each row, found 2": (
            lambda: plot_uncertainty(single.expand_dims(output=2))
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ArgumentError, match=message):
            call()
    # Without the distribution function the other figures remain.
    assert set(predictive_metrics(single.drop_vars("cdf"))) == {"log_likelihood", "rmse"}
