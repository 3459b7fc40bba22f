"""The parts of the benchmark, and the table and plots of their records."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.sgmcmc import problems
from benchmarks.study import Study, backends_of, save, subplots
from benchmarks.timing import timed

#: Steps of the two lengths of a run; their difference leaves out what is compiled and set up.
LENGTHS = {"numpyro": (5_000, 55_000), "pyro": (20, 320)}
STEP_SIZES = (1e-3, 3e-4, 1e-4)
BIAS_CHAINS, BIAS_DRAWS, BIAS_WARMUP = 8, 10_000, 2_000
PEER = {"numpyro": "blackjax", "pyro": "posteriors"}
DISTANCE, MODE_STEPS, CYCLE = 5.0, 4_000, 200
#: Score evaluations of each chain that weighs two modes, and the weight of the one that it starts
#: from; temperatures by half the distance of the modes.
EVALUATIONS, WEIGHT, MASS_CHAINS = 24_000, 0.1, 30
TEMPERATURES = {2.5: (1.0, 2.0, 4.0), 5.0: (1.0, 2.0, 4.0, 8.0)}


def _chains(backend: str) -> Any:
    return importlib.import_module(f"benchmarks.sgmcmc.{backend}_chains")


def _public(backend: str) -> Any:
    return importlib.import_module(f"{backend}_ext")


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen parts on the chosen backends; the exit status."""
    study = Study("sgmcmc", arguments.out)
    reference: np.ndarray | None = None
    for backend in backends_of(arguments.backend):
        if "speed" in arguments.parts:
            _speed(study, backend, arguments.rounds)
        if "bias" in arguments.parts:
            if reference is None:
                reference = _chains("numpyro").reference(*problems.logistic_rows())
            _bias(study, backend, reference)
        if "modes" in arguments.parts:
            _modes(study, backend, arguments.seeds)
        if "masses" in arguments.parts:
            for distance in TEMPERATURES:
                _masses(study, backend, distance)
    return study.report(study.overview(by=("step_size",)), pictures)


def pictures(runs: Sequence[records.Record], path: Path) -> None:
    """Both pictures, of the parts that ran."""
    plot_bias(runs, path.with_stem("sgmcmc-bias"))
    plot_modes(runs, path.with_stem("sgmcmc-modes"))


def _speed(study: Study, backend: str, rounds: int) -> None:
    """Microseconds of a step, from the difference of a long and a short run."""
    chains, (short, long) = _chains(backend), LENGTHS[backend]
    if backend == "pyro":
        import torch

        torch.set_num_threads(1)
    quick, slow = chains.speed_cases(short), chains.speed_cases(long)
    times: dict[str, list[float]] = {name: [] for name in quick}
    for number in range(rounds + 1):
        for name in quick:
            spent = timed(slow[name]) - timed(quick[name])
            if number:  # the first round compiles
                times[name].append(1e6 * spent / (long - short))
    for name, found in times.items():
        figures: dict[str, Any] = {"microseconds": found}
        if PEER[backend] in times:
            peer = np.asarray(times[PEER[backend]])
            figures["ratio"] = float(np.median(np.asarray(found) / peer))
        settings = {"steps": [short, long], "chains": 1 if backend == "numpyro" else 8}
        study.run(name, backend, "", 0, settings, partial(dict, figures), benchmark="sgmcmc speed")


def _estimators(public: Any, mean: np.ndarray) -> dict[str, Any]:
    return {
        "all rows": None,
        "minibatch": public.Minibatch(),
        "minibatch with replacement": public.Minibatch("replacement"),
        "control variate": public.ControlVariate({"w": mean.astype(np.float32)}),
        "SVRG": public.SVRG(problems.ROWS // problems.BATCH),
    }


def _bias(study: Study, backend: str, reference: np.ndarray) -> None:
    """Worst errors of means and standard deviations of a logistic regression's weights."""
    chains, public = _chains(backend), _public(backend)
    data = chains.rows(*problems.logistic_rows())
    mean, std = reference.mean(0), reference.std(0)
    for name, estimator in _estimators(public, mean).items():
        for size in STEP_SIZES:
            options = {} if name == "all rows" else {"batch": problems.BATCH}
            if name == "all rows" and backend == "pyro":
                continue  # a minute a run, and the same numbers
            settings = {"step_size": size, "chains": BIAS_CHAINS, "draws": BIAS_DRAWS}

            def work(estimator: Any = estimator, size: float = size, options: Any = options) -> Any:
                kernel = public.SGLD(chains.logistic, size, estimator=estimator)
                draws = chains.draw(
                    kernel,
                    data,
                    options,
                    num_samples=BIAS_DRAWS,
                    warmup=BIAS_WARMUP,
                    chains=BIAS_CHAINS,
                    initial={"w": np.tile(mean, (BIAS_CHAINS, 1)).astype(np.float32)},
                )["w"]
                ratios = draws.std((0, 1)) / std
                error = np.abs(draws.mean((0, 1)) - mean) / std
                return {"ratio": float(np.median(ratios)), "mean": float(error.max())}

            model = "logistic regression"
            study.run(name, backend, model, 0, settings, work, benchmark="sgmcmc bias")


def _modes(study: Study, backend: str, seeds: int) -> None:
    """Chains that start in one of two modes, and how many of them see both."""
    chains, public = _chains(backend), _public(backend)
    model = chains.two_modes(DISTANCE)
    start = {"z": np.full(seeds, DISTANCE, np.float32)}
    cyclical = public.CyclicalSGLD(model, 1.5, CYCLE)
    kernels = {
        "CyclicalSGLD": (cyclical, MODE_STEPS // CYCLE * cyclical.draws_per_cycle),
        "SGLD": (public.SGLD(model, 0.05), MODE_STEPS),
    }
    for name, (kernel, draws) in kernels.items():
        settings = {"steps": MODE_STEPS, "chains": seeds, "distance": DISTANCE}

        def work(kernel: Any = kernel, draws: int = draws) -> dict[str, Any]:
            options = {"num_samples": draws, "warmup": 0, "chains": seeds}
            z = chains.draw(kernel, (), {}, **options, initial=start)["z"]
            both = (z.min(1) < -DISTANCE / 2) & (z.max(1) > DISTANCE / 2)
            return {"both": int(both.sum()), "share": (z < 0).mean(1), "path": z[0]}

        study.run(name, backend, "two modes", 0, settings, work, benchmark="sgmcmc modes")


def _masses(study: Study, backend: str, distance: float) -> None:
    """Chains that start in the mode with one tenth, at equal numbers of score evaluations."""
    chains, public = _chains(backend), _public(backend)
    model = chains.two_modes(distance, WEIGHT)
    start = {"z": np.full(MASS_CHAINS, distance, np.float32)}
    cyclical = public.CyclicalSGLD(model, 1.5, CYCLE)
    momentum = public.CyclicalSGHMC(model, 0.5, CYCLE, exploration=0.5, exploration_temperature=6.0)
    replicas = public.ReplicaExchangeSGLD(model, 0.05, TEMPERATURES[distance], num_steps=5)
    cost = replicas.num_replicas * (replicas.num_steps + 2)
    kernels = {
        "SGLD, step 0.05": (public.SGLD(model, 0.05), EVALUATIONS),
        "SGLD, step 0.2": (public.SGLD(model, 0.2), EVALUATIONS),
        "CyclicalSGLD": (cyclical, EVALUATIONS // CYCLE * cyclical.draws_per_cycle),
        "CyclicalSGHMC": (momentum, EVALUATIONS // CYCLE * momentum.draws_per_cycle),
        "ReplicaExchangeSGLD": (replicas, EVALUATIONS // cost),
    }
    for name, (kernel, draws) in kernels.items():
        settings = {"evaluations": EVALUATIONS, "chains": MASS_CHAINS, "weight": WEIGHT}

        def work(kernel: Any = kernel, draws: int = draws) -> dict[str, float]:
            # The first tenth is left out.
            warmup = draws // 10
            options = {"num_samples": draws - warmup, "warmup": warmup, "chains": MASS_CHAINS}
            shares = (chains.draw(kernel, (), {}, **options, initial=start)["z"] > 0).mean(1)
            error = float(np.sqrt(np.mean((shares - WEIGHT) ** 2)))
            return {"share": float(shares.mean()), "error": error}

        model = f"{2 * distance:g} apart"
        study.run(name, backend, model, 0, settings, work, benchmark="sgmcmc masses")


#: Scores as the page names them.
ON_PAGE = {
    "all rows": "all rows",
    "minibatch": "`Minibatch()`",
    "minibatch with replacement": '`Minibatch("replacement")`',
    "control variate": "`ControlVariate(mode)`",
    "SVRG": f"`SVRG({problems.ROWS // problems.BATCH})`",
}


def bias_table(runs: Sequence[records.Record]) -> str:
    """The table of errors on the page, NumPyro's."""
    rows = {name: {"scores": heading} for name, heading in ON_PAGE.items()}
    for each in runs:
        if (each.benchmark, each.backend) == ("sgmcmc bias", "numpyro"):
            size, figures = f"{each.settings['step_size']:g}", each.figures
            rows[each.method][size] = f"{figures['ratio']:.2f} ({figures['mean']:.2f})"
    sizes = [f"{size:g}" for size in STEP_SIZES]
    headings = {"scores": "scores", sizes[0]: f"α = {sizes[0]}"} | {
        size: size for size in sizes[1:]
    }
    return records.markdown_table(list(rows.values()), headings)


def masses_table(runs: Sequence[records.Record]) -> str:
    """The table of the modes' masses on the page."""
    found = [each for each in runs if each.benchmark == "sgmcmc masses"]
    rows = {each.method: {"kernel": each.method} for each in found}
    for each in found:
        figures, host = each.figures, records.LABELS[each.backend]
        cell = f"{figures['share']:.3f} ({figures['error']:.3f})"
        rows[each.method][f"{each.model}, {host}"] = cell
    return records.markdown_table(list(rows.values()))


def plot_bias(runs: Sequence[records.Record], path: Path) -> None:
    """Standard deviations by step size."""
    found = [r for r in runs if r.benchmark == "sgmcmc bias" and not r.failed]
    if not found:
        return
    figure, axis = subplots(figsize=(7, 4))
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(r.method for r in found))}
    for backend, method in dict.fromkeys((r.backend, r.method) for r in found):
        points = sorted(
            (r.settings["step_size"], r.figures["ratio"])
            for r in found
            if (r.backend, r.method) == (backend, method)
        )
        axis.plot(
            *zip(*points, strict=True),
            color=colours[method],
            marker="o" if backend == "numpyro" else "x",
            linestyle="-" if backend == "numpyro" else "--",
            label=f"{method}, {backend}",
        )
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_yticks([1, 1.2, 1.5, 2, 3, 5], ["1", "1.2", "1.5", "2", "3", "5"])
    axis.minorticks_off()
    axis.set_xlabel("step size")
    axis.set_ylabel("standard deviation / NUTS's")
    axis.legend(fontsize=8)
    save(figure, path)


def plot_modes(runs: Sequence[records.Record], path: Path) -> None:
    """Draws of one chain of each kernel."""
    found = [r for r in runs if r.benchmark == "sgmcmc modes" and not r.failed]
    found = [r for r in found if r.backend == found[0].backend]
    if not found:
        return
    figure, axes = subplots(len(found), 2, figsize=(9, 4.5), width_ratios=(3, 1), squeeze=False)
    grid = np.linspace(-10, 10, 400)
    density = 0.5 * sum(
        np.exp(-0.5 * (grid - mode) ** 2) / np.sqrt(2 * np.pi) for mode in (-DISTANCE, DISTANCE)
    )
    for (path_axis, histogram), r in zip(axes, found, strict=True):
        z = np.asarray(r.figures["path"])
        path_axis.plot(z, ".", markersize=1.5)
        path_axis.set_ylim(-10, 10)
        path_axis.set_title(f"{r.method}: draws of one chain", fontsize=10)
        histogram.hist(z, bins=60, range=(-10, 10), density=True, orientation="horizontal")
        histogram.plot(density, grid, color="black", linewidth=1)
        histogram.set_ylim(-10, 10)
    save(figure, path)
