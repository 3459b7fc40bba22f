"""Networks judged by their outputs: figures of known Normals, programs, references, a whole run."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import __main__ as command_line
from benchmarks import datasets, records
from benchmarks.network_truth import REFERENCES, methods, report, study
from benchmarks.network_truth.figures import (
    agreement,
    figures,
    sampling_error,
    total_variation,
)
from benchmarks.network_truth.methods import (
    METHODS,
    Answer,
    flat_and_thinned,
    length_of,
    run_method,
    what_it_says,
)
from benchmarks.network_truth.networks import NETWORKS, Network, bound
from benchmarks.network_truth.outputs import LEVELS, Outputs, Reference, outputs_of, predicted
from benchmarks.records import Record
from benchmarks.trust.methods import Fitted, Size
from benchmarks.trust.problems import Program
from benchmarks.trust.target import Target
from ppl_ext.errors import ConvergenceWarning
from tests.backends import PACKAGES

#: Independent outputs, Normals of these means and standard deviations.
MEANS, SDS = np.array([-1.0, 0.0, 3.0]), np.array([0.1, 1.0, 10.0])
DRAWS = 1_001


def normal_outputs(shift: float = 0.0, scale: float = 1.0) -> Outputs:
    """Quantiles of the Normals, as good as draws, moved by so many standard deviations."""
    places = norm.ppf((np.arange(DRAWS) + 0.5) / DRAWS)
    generator = np.random.default_rng(0)
    z = np.stack([generator.permutation(places) for _ in MEANS], 1)
    values = MEANS + SDS * (shift + scale * z)
    return Outputs(values, norm.logpdf(0.0, values[:, :1], 1.0))


def exact(**about: Any) -> Reference:
    """What is kept of exact draws."""
    quantiles = MEANS + SDS * norm.ppf(LEVELS)[:, None]
    about = {"least effective": np.inf, "log density": -1.0, **about}
    return Reference(MEANS, SDS, quantiles, None, about)


def distance(shift: float, scale: float) -> float:
    """Kolmogorov distance of the moved Normal at the reference's quantiles."""
    z = norm.ppf(LEVELS)
    return float(np.abs(norm.cdf((z - shift) / scale) - LEVELS).max())


@pytest.mark.parametrize(
    ("shift", "scale", "reasons"),
    [
        (0.0, 1.0, []),
        (0.05, 1.05, []),
        (-0.3, 1.0, ["means are 0.30 sd off"]),
        (0.0, 1.15, ["sds are 1.15 times the reference's in the median"]),
        (0.0, 0.5, ["sds are 0.50 times", "sds are 0.50 to 0.50", "a Kolmogorov distance is 0.1"]),
    ],
)
def test_moved_draws_of_a_known_normal(shift: float, scale: float, reasons: list[str]) -> None:
    found = figures(normal_outputs(shift, scale), exact())
    # Quantiles of the middles of n equal parts have a standard deviation that is 1 - O(1 / n).
    assert found["mean error"] == pytest.approx(abs(shift), abs=1e-9)
    assert found["greatest mean error"] == pytest.approx(abs(shift), abs=1e-9)
    for name in ("sd ratio", "least sd ratio", "greatest sd ratio"):
        assert found[name] == pytest.approx(scale, rel=3.0 / DRAWS)
    for name in ("Kolmogorov", "greatest Kolmogorov"):
        assert found[name] == pytest.approx(distance(shift, scale), abs=1.0 / DRAWS)
    assert found["right"] is (not reasons)
    assert len(found["reasons"]) == len(reasons)
    for text, start in zip(found["reasons"], reasons, strict=True):
        assert text.startswith(start)


def test_one_wide_output_is_out_though_the_median_is_not() -> None:
    outputs = normal_outputs()
    values = MEANS + (outputs.values - MEANS) * np.array([1.0, 1.0, 1.4])
    found = figures(Outputs(values, outputs.log_likelihood), exact())
    assert found["sd ratio"] == pytest.approx(1.0, rel=3.0 / DRAWS)
    assert found["greatest sd ratio"] == pytest.approx(1.4, rel=3.0 / DRAWS)
    assert found["reasons"] == [f"sds are 1.00 to {found['greatest sd ratio']:.2f} times the "
                                "reference's"]  # fmt: skip


def test_draws_stay_within_the_sampling_error_of_a_distance() -> None:
    generator = np.random.default_rng(1)
    reference, number, beyond = exact(), 50, 0
    for _ in range(200):
        values = MEANS + SDS * generator.normal(size=(number, 3))
        found = figures(Outputs(values, values), reference)
        beyond += found["greatest Kolmogorov"] > sampling_error(number, reference)
    # At most 1 % of them are expected; 7 or more of 200 have a probability below 0.5 %.
    assert beyond <= 6
    finite = sampling_error(number, exact(**{"least effective": number}))
    assert finite == pytest.approx(2.0**0.5 * sampling_error(number, reference))


def test_figures_of_classes_by_hand() -> None:
    true = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    ours = np.array([[0.3, 0.5, 0.2], [0.1, 0.6, 0.3]])
    assert agreement(ours, true) == 0.5
    assert total_variation(ours, true) == pytest.approx(0.2)
    assert total_variation(true, true) == 0.0 and agreement(true, true) == 1.0
    reference = Reference(MEANS, SDS, exact().quantiles, true, exact().about)
    outputs = normal_outputs()
    found = figures(Outputs(outputs.values, outputs.log_likelihood, ours), reference)
    assert (found["agreement"], found["total variation"]) == (0.5, pytest.approx(0.2))


def test_log_density_is_that_of_the_mixture() -> None:
    likelihood = np.log(np.array([[0.2, 0.5], [0.6, 0.1]]))
    assert Outputs(likelihood, likelihood).log_density == pytest.approx(
        0.5 * (np.log(0.4) + np.log(0.3))
    )


def test_outputs_that_are_not_finite_are_wrong() -> None:
    values = normal_outputs().values.copy()
    values[3, 1] = np.inf
    found = figures(Outputs(values, values), exact())
    assert found == {"right": False, "reasons": ["outputs that are not finite"]}


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    probabilities = np.array([[0.25, 0.75]])
    outputs = normal_outputs()
    kept = Reference.of(
        Outputs(outputs.values, outputs.log_likelihood, probabilities), {"least effective": 9.0}
    )
    kept.save(tmp_path / "new" / "a.npz")
    found = Reference.load(tmp_path / "new" / "a.npz")
    for name in ("mean", "sd", "quantiles", "probabilities"):
        np.testing.assert_allclose(getattr(found, name), getattr(kept, name), rtol=1e-6)
    assert found.about == kept.about and found.about["log density"] == outputs.log_density
    np.testing.assert_allclose(found.quantiles[24], MEANS, atol=0.02)


# -- the networks -----------------------------------------------------------------------------


def rows_are_here(network: Network) -> bool:
    """Whether the rows of a network are on this machine."""
    try:
        network.rows()
    except datasets.MissingDataError:
        return False
    return True


def test_networks_are_many_small_and_of_all_kinds() -> None:
    found = list(NETWORKS.values())
    assert len(found) >= 10
    assert all(100 <= network.dimension <= 5_000 for network in found)
    assert {network.head for network in found} == {"noise", "spread", "classes"}
    assert {len(network.widths) for network in found if not network.channels} == {3, 4}
    assert any(network.channels for network in found)
    assert NETWORKS["diabetes"].dimension == 602
    for network in filter(rows_are_here, found):
        rows = network.rows()
        assert f"{len(rows.x_train):,} rows" in network.about and len(rows.x_test) <= 100
        assert np.isfinite(rows.x_test).all() and len(rows.y_test) == len(rows.x_test)


def in_pyro(draws: dict[str, Any]) -> dict[str, Any]:
    """Weights of the NumPyro program as torch lays them out."""
    numbers = [int(name.split(".")[2]) for name in draws if name.endswith("kernel")]
    # The pooling is one function there, and two modules in torch.
    convolved = any(draws[f"net.layers.{n}.kernel"].ndim == 5 for n in numbers)
    found = {}
    for name, value in draws.items():
        if not name.startswith("net."):
            found[name] = np.array(value)
            continue
        _, _, number, kind = name.split(".")
        value = np.array(value)  # torch wants what it may write to
        place = int(number) + (convolved and int(number) > 0)
        if kind == "bias":
            found[f"net.{place}.bias"] = value
        else:
            axes = (0, 4, 3, 1, 2) if value.ndim == 5 else (0, 2, 1)
            found[f"net.{place}.weight"] = value.transpose(axes)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "curve-spread",
        "digits-convolution",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("curve", "moons", "wine")),
    ],
)
def test_both_packages_have_the_same_network(name: str) -> None:
    network = NETWORKS[name]
    there, here = bound(network, "numpyro"), bound(network, "pyro")
    target = Target("numpyro", there.program.model, there.program.args)
    assert target.dim == network.dimension
    generator = np.random.default_rng(0)
    z = 0.5 * generator.normal(size=(3, target.dim))
    draws = target.constrain(z)
    moved = in_pyro(draws)
    mine = predicted("numpyro", there.program.model, draws, there.held_out)
    other = predicted("pyro", here.program.model, moved, here.held_out)
    np.testing.assert_allclose(mine.values, other.values, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mine.log_likelihood, other.log_likelihood, rtol=1e-3, atol=1e-3)
    own = Target("pyro", here.program.model, here.program.args)
    ours, _ = own.value_and_score(own.unconstrain(moved))
    np.testing.assert_allclose(target.value_and_score(z)[0], ours, rtol=1e-4)


@pytest.mark.parametrize("package", PACKAGES)
def test_outputs_are_those_of_the_layers(package: str) -> None:
    network = NETWORKS["curve-deep"]
    there = bound(network, "numpyro")
    target = Target("numpyro", there.program.model, there.program.args)
    draws = target.constrain(np.random.default_rng(0).normal(size=(4, target.dim)))
    rows = network.rows()
    x = np.broadcast_to(rows.x_test, (4, *rows.x_test.shape))
    for number, _ in enumerate(pairwise(network.widths)):
        weight, bias = (draws[f"net.layers.{2 * number}.{kind}"] for kind in ("kernel", "bias"))
        x = (np.tanh(x) if number else x) @ weight + bias[:, None]
    mine = bound(network, package)
    given = in_pyro(draws) if package == "pyro" else draws
    found = predicted(package, mine.program.model, given, mine.held_out)
    np.testing.assert_allclose(found.values[:, :-1], x[..., 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.values[:, -1], np.log(draws["noise"]), rtol=1e-4, atol=1e-5)
    expected = norm.logpdf(rows.y_test, x[..., 0], draws["noise"][:, None])
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-3, atol=1e-3)


def test_outputs_of_classes_are_centred_logits() -> None:
    import xarray

    logits = np.random.default_rng(0).normal(size=(5, 2, 3))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    of_three = xarray.Dataset(
        {
            "probabilities": (("draw", "row", "class"), shares),
            "log_likelihood": (("draw", "row"), logits[..., 0]),
        }
    )
    found = outputs_of(of_three, {})
    expected = logits - logits.mean(-1, keepdims=True)
    np.testing.assert_allclose(found.values, expected.reshape(5, -1), atol=1e-9)
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities, shares.mean(0))
    certain = of_three.isel({"class": [0, 1]}) * 0.0
    certain["probabilities"][..., 1] = 1.0
    np.testing.assert_allclose(outputs_of(certain, {}).values, -0.5 * np.log(1e-7))


# -- methods ----------------------------------------------------------------------------------


def test_draws_are_thinned_evenly_in_the_order_of_chains() -> None:
    draws = {"a": np.arange(24.0).reshape(2, 12), "b": np.zeros((2, 12, 3))}
    flat, shape = flat_and_thinned(Fitted(draws, 1, chains=True), 8)
    assert shape == (2, 4) and flat["b"].shape == (8, 3)
    np.testing.assert_array_equal(flat["a"], [0, 3, 6, 9, 12, 15, 18, 21])
    flat, shape = flat_and_thinned(Fitted({"a": np.arange(10.0)}, 1), 5)
    assert shape == (5,) and flat["a"].tolist() == [0, 2, 4, 6, 8]


def test_cycles_are_whole_and_their_exploring_steps_are_counted() -> None:
    recipe = METHODS["CyclicalSGHMC"]
    kernel = SimpleNamespace(draws_per_cycle=125, cycle_length=500)
    # 8 cycles of warm-up and 40 after it, of 500 steps, in 4 chains.
    assert length_of(recipe, Size(), kernel) == (1_000, 5_000, 4 * 48 * 500)
    assert length_of(METHODS["SGLD"], Size(), None) == (1_000, 5_000, 24_000)
    assert length_of(METHODS["ReplicaExchangeSGLD"], Size(), None)[2] == 30 * 24_000


def test_chains_are_asked_of_outputs_and_doubts_are_added() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2_000, 2))
    chains = partial(Fitted, {}, 1, chains=True)
    assert what_it_says(chains(), values, (4, 500))["trusted"]
    doubtful = what_it_says(chains(reasons=("its step is long",)), values, (4, 500))
    assert not doubtful["trusted"] and doubtful["told"] == ["its step is long"]
    values[:500] += 3.0
    assert not what_it_says(chains(), values, (4, 500))["trusted"]
    assert what_it_says(Fitted({}, 1), values, (2_000,))["trusted"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # so few steps are too few, as some methods say
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", METHODS)
def test_every_recipe_runs(name: str, package: str, line: str) -> None:
    with_rows = bound(NETWORKS[line], package)
    answer = run_method(name, package, with_rows.program, 0, Size(0.01))
    draws, shape = flat_and_thinned(answer.fitted)
    found = predicted(package, with_rows.program.model, draws, with_rows.held_out, answer.linear_at)
    assert found.values.shape == (int(np.prod(shape)), 5)
    assert answer.fitted.evaluations is not None and answer.fitted.evaluations > 0
    assert answer.fitted.chains is (name == "NUTS" or METHODS[name].kernel != "")


def test_warnings_of_convergence_are_what_a_method_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(*_: Any) -> Answer:
        warnings.warn("still on their way", ConvergenceWarning, stacklevel=1)
        warnings.warn("something of the host's", UserWarning, stacklevel=1)
        return Answer(Fitted({}, 1, chains=True))

    monkeypatch.setattr(methods, "_run", warned)
    fitted = run_method("SGLD", "pyro", Program(len), 0, Size()).fitted
    assert fitted.reasons == ("still on their way",) and fitted.trusted is False


# -- whole runs -------------------------------------------------------------------------------


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """A network without hidden units on ten rows."""

    def rows() -> datasets.Split:
        x = np.linspace(-1.0, 1.0, 10)[:, None]
        noise = 0.3 * np.random.default_rng(0).normal(size=10)
        return datasets.Split(x, 0.5 + x[:, 0] + noise, 2.0 * x[::3], 0.5 + 2.0 * x[::3, 0])

    monkeypatch.setitem(NETWORKS, "line", Network("a line, 10 rows", rows, (1, 1), "noise"))
    return "line"


def test_a_reference_is_made_and_methods_are_judged_by_it(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["network-truth", "--networks", line, "--folder", str(tmp_path / "references")]
    given += ["--out", str(tmp_path)]
    assert command_line.main(given) == 2
    assert "--references --networks line" in capsys.readouterr().err
    sizes = ["--chains", "4", "--draws", "500", "--warm-up", "300"]
    assert command_line.main([*given, "--references", *sizes]) == 0
    reference = Reference.load(tmp_path / "references" / "line.npz")
    assert reference.mean.shape == (5,) and reference.about["R-hat"] < 1.05
    # The posterior mean of the line, with a standard error below 0.1, is near the truth.
    np.testing.assert_allclose(reference.mean[:4], [-1.5, -0.17, 1.17, 2.5], atol=0.6)

    names = ["NUTS", "ADVI", "DeepEnsemble"]
    given += ["--resume", "--methods", *names, "--small", "--backend"]
    assert command_line.main([*given, "both"]) == 0, capsys.readouterr()
    path = tmp_path / "network-truth.jsonl"
    found = report.judged(records.read(path))
    assert [(run.backend, run.method) for run in found] == [
        (backend, method) for backend in ("numpyro", "pyro") for method in names
    ]
    for run in found:
        assert run.error is None
        assert run.figures["evaluations"] > 0 and run.figures["processor seconds"] > 0.0
        assert not run.figures["right"] or run.method == "NUTS"
    before = path.read_text()
    assert command_line.main([*given, "numpyro"]) == 0 and path.read_text() == before
    text = (tmp_path / "network-truth.md").read_text()
    assert "| line    | NumPyro | NUTS         |" in text and "## References" in text
    assert (tmp_path / "network-truth.png").stat().st_size > 10_000


def test_a_method_that_fails_is_recorded(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = normal_outputs()
    Reference.of(outputs, {"least effective": 100.0}).save(tmp_path / "line.npz")

    def broken(*_: Any) -> Any:
        raise FloatingPointError("thrown to infinity")

    monkeypatch.setattr(study, "run_method", broken)
    forgotten: list[None] = []
    monkeypatch.setattr(study, "forget_programs", lambda: forgotten.append(None))
    given = ["network-truth", "--networks", line, "--folder", str(tmp_path), "--methods", "fit"]
    given += ["--backend", "pyro", "--out", str(tmp_path)]
    assert command_line.main(given) == 1
    (run,) = records.read(tmp_path / "network-truth.jsonl")
    assert run.error == "FloatingPointError: thrown to infinity" and len(forgotten) == 1
    assert "thrown to infinity" in (tmp_path / "network-truth.md").read_text()
    (row,) = report.rows([run])
    assert row["outcome"] == "failed" and row["mean error"] is None

    infinite = Fitted({"w": np.array([1.0, np.inf])}, 7, trusted=True)
    assert study.thrown(infinite)["trusted"] and not study.thrown(infinite)["right"]


def test_seconds_are_those_of_the_first_seed() -> None:
    runs = []
    for seed, (seconds, error) in enumerate([(9.0, 0.3), (4.0, 0.1), (3.0, 0.2)]):
        run = Record("network-truth", "fit", "numpyro", "moons", seed=seed)
        run.figures = {"processor seconds": seconds, "mean error": error, "right": True}
        run.figures["trusted"] = True
        runs.append(run)
    (row,) = report.rows(runs[::-1])
    assert row["processor s"] == 9.0 and row["mean error"] == 0.2


def test_chains_that_disagree_make_no_reference(line: str, tmp_path: Path) -> None:
    given = ["network-truth", "--networks", line, "--folder", str(tmp_path / "none"), "--out"]
    sizes = ["--chains", "2", "--draws", "4", "--warm-up", "1"]
    assert command_line.main([*given, str(tmp_path), "--references", *sizes]) == 1
    (run,) = records.read(tmp_path / "network-truth.jsonl")
    assert run.error is not None and run.error.startswith("ChainsDisagree: R-hat of outputs")
    assert not (tmp_path / "none").exists()


def test_few_draws_are_chosen_at_the_held_out_inputs(line: str) -> None:
    """By each package, of the same draws; responses are not looked at."""
    rng = np.random.default_rng(0)
    noise = np.exp(0.3 * rng.normal(size=100))
    slopes, levels = rng.normal(size=(2, 100, 1))
    layer = {"numpyro": ("layers.0.kernel", "layers.0.bias"), "pyro": ("0.weight", "0.bias")}
    chosen = []
    for backend, (weight, bias) in layer.items():
        with_rows = bound(NETWORKS[line], backend)
        draws = {f"net.{weight}": slopes[..., None], f"net.{bias}": levels, "noise": noise}
        draws = {name: each.astype(np.float32) for name, each in draws.items()}
        held_out = (with_rows.held_out[0], None)
        few = methods.few_of(backend, with_rows.program.model, draws, held_out)
        assert len(few["noise"]) == methods.REPRESENTATIVE
        chosen.append(few["noise"])
        assert abs(np.log(few["noise"]).mean() - np.log(noise).mean()) < 0.02
    np.testing.assert_array_equal(chosen[0], chosen[1])


def test_stein_equations_say_all_of_a_linear_network(line: str) -> None:
    """A line's outputs plus what the equations say of them are the posterior's means, given noise.

    The exact mean is that of the ridge regression at the one noise that all draws have.
    """
    from benchmarks.network_truth import equations

    with_rows, rng = bound(NETWORKS[line], "numpyro"), np.random.default_rng(0)
    draws = {
        "net.layers.0.kernel": rng.normal(size=(6, 1, 1)),
        "net.layers.0.bias": rng.normal(size=(6, 1)),
        "noise": np.full(6, 0.3),
    }
    draws = {name: each.astype(np.float32) for name, each in draws.items()}
    values, newton, probes = equations.terms(with_rows, draws)
    rows = NETWORKS[line].rows()
    inputs = np.stack([rows.x_train[:, 0], np.ones(10)], 1)
    weights = np.linalg.solve(inputs.T @ inputs + 0.09 * np.eye(2), inputs.T @ rows.y_train)
    exact = rows.x_test[:, 0] * weights[0] + weights[1]
    np.testing.assert_allclose(values + newton, np.tile(exact, (6, 1)), atol=1e-4)
    # What depends on the noise moves no output, so that nothing diverges.
    np.testing.assert_allclose(probes.mean(1), 0.0, atol=0.2)


def test_networks_and_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["network-truth", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"| {name} " in text for name in (*NETWORKS, *METHODS))


def test_kept_references_are_of_the_networks() -> None:
    for path in REFERENCES.glob("*.npz"):
        network, reference = NETWORKS[path.stem], Reference.load(path)
        assert reference.about["dimension"] == network.dimension
        assert reference.about["R-hat"] <= study.R_HAT
        assert np.isfinite(reference.quantiles).all() and (reference.sd > 0.0).all()
        assert (np.diff(reference.quantiles, axis=0) >= 0.0).all()
        if rows_are_here(network):
            rows = len(network.rows().x_test)
            outputs = {"noise": rows + 1, "spread": 2 * rows}.get(
                network.head, rows * (network.widths[-1] if network.widths[-1] > 1 else 1)
            )
            assert reference.mean.shape == (outputs,)
        assert path.stat().st_size < 200_000
