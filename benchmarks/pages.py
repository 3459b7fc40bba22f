"""`python -m benchmarks pages`: tables and pictures of the documentation, made of their records.

A table of a page that stands between two comments,

    <!-- table: NAME -->
    <!-- end of table -->

is what a function makes of the records of a benchmark that are kept in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import records

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"

#: Files of the papers' records, each of which may be absent.
SVGD_VR = ("logistic.jsonl", "regression.jsonl")
SVN = ("bnn.jsonl", "images.jsonl")
SCORE_VI = (
    *("synthetic.jsonl", "score-vi.jsonl", "images.jsonl", "vision.jsonl"),
    *("forecasting.jsonl", "posteriordb.jsonl", "noisy-scores.jsonl"),
)
OVERVIEWS = ("row-noise.jsonl", "linearized.jsonl", "sgmcmc.jsonl", "bnn.jsonl")
PAPERS = tuple(dict.fromkeys((*SVGD_VR, *SVN, *SCORE_VI, *OVERVIEWS)))


def _one(words: str) -> tuple[str, str]:
    """A file of records and a function, of two words."""
    file, function = words.split()
    return f"{file}.jsonl", function


#: Of each table the file of its records, or files of which those count that are there, and the
#: function that makes it of them.
TABLES: dict[str, tuple[str | tuple[str, ...], str]] = {
    "papers, verdicts": (PAPERS, "benchmarks.papers.page:counted"),
    "papers, failing": (PAPERS, "benchmarks.papers.page:failing"),
    "papers, queue": (("queue.jsonl",), "benchmarks.papers.page:left"),
    "papers, SVGD-VR": (SVGD_VR, "benchmarks.papers.svgd_vr:table"),
    "papers, SVGD-VR, equal gradients": (SVGD_VR, "benchmarks.papers.svgd_vr:controls"),
    "papers, SVN": (SVN, "benchmarks.papers.svn:table"),
    "papers, SVN, by time": (SVN, "benchmarks.papers.svn:controls"),
    "papers, score-vi": (SCORE_VI, "benchmarks.papers.score_vi:table"),
    "papers, overview": (OVERVIEWS, "benchmarks.papers.overviews:overview"),
    "papers, survey": (OVERVIEWS, "benchmarks.papers.overviews:survey"),
    "rivals": (("posteriordb.jsonl", "trust.jsonl"), "benchmarks.posteriordb.report:rivals_table"),
} | {
    name: _one(words)
    for name, words in {
        "evidence": "evidence benchmarks.evidence.study:table",
        "fit-many": "fit-many benchmarks.fit_many:table",
        "refit": "refit benchmarks.refit:table",
        "batches": "batches benchmarks.batches.comparison:page_table",
        "discrete": "discrete benchmarks.discrete.comparison:page_table",
        "discrete, large": "discrete benchmarks.discrete.comparison:large_table",
        "sgmcmc, bias": "sgmcmc benchmarks.sgmcmc.report:bias_table",
        "sgmcmc, masses": "sgmcmc benchmarks.sgmcmc.report:masses_table",
        "horseshoe": "horseshoe benchmarks.networks.horseshoe:page_table",
        "row noise": "row-noise benchmarks.row_noise.comparison:page_table",
        "linearized": "linearized benchmarks.networks.linearized:page_table",
        "kernels": "kernels benchmarks.kernels.comparison:page_table",
        "gradient": "speed benchmarks.speed:page_table",
        "curvature": "curvature benchmarks.curvature.comparison:page_table",
        "semi-exact": "semi-exact benchmarks.semi_exact.report:page_table",
        "semi-exact, packages": "semi-exact benchmarks.semi_exact.report:packages_table",
        "semi-exact, steps": "semi-exact benchmarks.semi_exact.report:cost_table",
        "noisy scores": "noisy-scores benchmarks.noisy_scores.report:summary_table",
        "noisy scores, level 0": "noisy-scores benchmarks.noisy_scores.report:exact_table",
        "noisy scores, level 1": "noisy-scores benchmarks.noisy_scores.report:noisy_table",
        "noisy scores, level 10": "noisy-scores benchmarks.noisy_scores.report:noisiest_table",
        "noisy scores, minibatches": "noisy-scores benchmarks.noisy_scores.report:minibatch_table",
        "noisy scores, errors": "noisy-scores benchmarks.noisy_scores.report:errors_table",
        "noisy scores, parts": "noisy-scores benchmarks.noisy_scores.report:ablation_table",
        "noisy scores, long": "noisy-scores benchmarks.noisy_scores.report:long_table",
        "noisy scores, packages": "noisy-scores benchmarks.noisy_scores.report:packages_table",
        "posteriordb": "posteriordb benchmarks.posteriordb.report:overview_table",
        "posteriordb, peers": "posteriordb-peers benchmarks.trust.report:peers_table",
        "posteriordb, right": "posteriordb benchmarks.posteriordb.report:right_table",
        "first result, NumPyro": "first-result benchmarks.first_result.comparison:numpyro_table",
        "first result, Pyro": "first-result benchmarks.first_result.comparison:pyro_table",
        "first result, cache": "first-result benchmarks.first_result.comparison:cache_table",
        "score-vi, logistic": "score-vi benchmarks.score_vi.minibatch:logistic_table",
        "implicit": "implicit benchmarks.implicit.comparison:page_table",
        "score-vi, memory": "score-vi benchmarks.score_vi.memory:page_table",
        "score-vi, passes": "score-vi benchmarks.score_vi.passes:page_table",
        "score-vi, mixtures": "synthetic benchmarks.synthetic.report:mixtures_table",
        "kills": "kills benchmarks.process.kills:page_table",
        "networks": "bnn benchmarks.bnn.report:page_table",
        "network truth": "network-truth benchmarks.network_truth.report:page_table",
        "network truth, references": "network-truth benchmarks.network_truth.report:chains_table",
        "network truth, equations": "network-truth benchmarks.network_truth.report:equations_table",
        "network sets": "network-sets benchmarks.network_truth.sets:page_table",
        "networks, best": "bnn benchmarks.bnn.report:best_table",
        "newton, along a run": "newton-curvature benchmarks.bnn.studies:matrices_table",
        "uncertainty": "uncertainty benchmarks.uncertainty.figure:table",
        "regression": "regression benchmarks.regression.report:page_table",
        "score-vi, networks": "score-vi benchmarks.score_vi.minibatch:uci_table",
        "soak": "soak benchmarks.process.soak:page_table",
        "trust": "trust benchmarks.trust.report:page_table",
        "trust, bound": "trust benchmarks.trust.bound:page_table",
        "trust, missed": "trust benchmarks.trust.report:missed_table",
        "trust, peers": "trust-peers benchmarks.trust.report:peers_table",
        "trust, engines": "trust-engines benchmarks.trust.report:engines_table",
        "check": "check benchmarks.trust.checking:page_table",
        "warm chains": "warm-chains benchmarks.trust.report:warm_table",
        "scaling, moves": "scaling benchmarks.scaling.report:moves_table",
        "scaling, efficiency": "scaling benchmarks.scaling.report:efficiency_table",
        "score matching": "score-matching docs.examples.score_matching_report:table",
        "flat histogram": "flat-histogram docs.examples.flat_histogram_report:table",
        "ppca": "ppca docs.examples.ppca_closed_forms:table",
        "energy": "energy-based-model docs.examples.energy_based_report:table",
        "out of distribution": "out-of-distribution docs.examples.out_of_distribution_report:table",
        "vae": "vae docs.examples.vae_tables:fits_table",
        "vae, two levels": "hierarchical-vae docs.examples.vae_tables:levels_table",
        "vae, improved": "improved-vae docs.examples.vae_tables:improved_table",
        "distilled vae": "distilled-vae docs.examples.vae_distilled:table",
        "scaling, kills": "scaling benchmarks.scaling.report:kills_table",
        "vision, steps": "vision benchmarks.vision.study:steps_table",
        "vision, fits": "vision benchmarks.vision.study:fits_table",
    }.items()
}

#: Of each picture in `docs/images` the file of its records and the function that draws it.
PICTURES: dict[str, tuple[str, str]] = {
    name: _one(words)
    for name, words in {
        "example-distilled-vae.png": "distilled-vae docs.examples.vae_distilled:draw",
        "batches.png": "batches benchmarks.batches.comparison:plot",
        "fit-trust.png": "trust benchmarks.trust.report:plot",
        "errors-kills.png": "kills benchmarks.process.kills:plot",
        "newton-networks.png": "bnn benchmarks.bnn.report:picture",
        "stein-regression.png": "regression benchmarks.regression.report:picture",
        "errors-soak.png": "soak benchmarks.process.soak:plot",
        "network-sets.png": "network-sets benchmarks.network_truth.sets:plot",
        "horseshoe.png": "horseshoe benchmarks.networks.horseshoe:plot",
        "stein-kernels.png": "kernels benchmarks.kernels.comparison:picture",
        "implicit.png": "implicit benchmarks.implicit.comparison:plot",
        "linearized.png": "linearized benchmarks.networks.linearized:plot",
        "scaling.png": "scaling benchmarks.scaling.report:plot",
        "posteriordb-convergence.png": "posteriordb benchmarks.posteriordb.report:page_curves",
        "sgmcmc-bias.png": "sgmcmc benchmarks.sgmcmc.report:plot_bias",
        "sgmcmc-modes.png": "sgmcmc benchmarks.sgmcmc.report:plot_modes",
        "noisy-scores.png": "noisy-scores benchmarks.noisy_scores.report:picture",
        "stein-semi-exact.png": "semi-exact benchmarks.semi_exact.report:picture",
        "score-vi-mixtures.png": "synthetic benchmarks.synthetic.plots:mixtures",
        "vision-steps.png": "vision benchmarks.vision.study:plot_steps",
        "vision-fits.png": "vision benchmarks.vision.study:plot_fits",
    }.items()
}

_MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<name>.+?) -->)\n.*?(?P<end><!-- end of table -->)", re.DOTALL
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--pictures", action="store_true", help="draw the pictures as well")
    parser.add_argument("--check", action="store_true", help="say which pages differ, write none")


def main(arguments: argparse.Namespace) -> int:
    """Write the tables into the pages; the exit status, 1 where pages differ that were checked."""
    changed = []
    for path in marked_pages():
        before = path.read_text(encoding="utf-8")
        if (after := rebuilt(before)) != before:
            changed.append(path)
            if not arguments.check:
                records.write_text(path, after)
    for path in changed:
        print(f"{path.relative_to(ROOT)}: {'differs' if arguments.check else 'written'}")
    if arguments.pictures:
        for name in PICTURES:
            drawn(name, DOCS / "images" / name)
            print(f"docs/images/{name}: drawn")
    return int(arguments.check and bool(changed))


def marked_pages() -> list[Path]:
    """Pages with tables that are made of records."""
    pages = [*ROOT.glob("README.md"), *sorted(DOCS.rglob("*.md"))]
    return [path for path in pages if _MARKED.search(path.read_text("utf-8"))]


def rebuilt(page: str) -> str:
    """The text of a page with its tables made anew.

    Raises
    ------
    KeyError
        A table is not known.
    """
    return _MARKED.sub(
        lambda found: f"{found['begin']}\n{table(found['name'])}\n{found['end']}", page
    )


def table(name: str) -> str:
    """A table made of its records."""
    runs, maker = _found(*TABLES[name])
    made: str = maker(runs)
    return made.strip()


def drawn(name: str, path: Path) -> None:
    """Draw a picture of its records."""
    runs, maker = _found(*PICTURES[name])
    maker(runs, path)


def _found(
    files: str | tuple[str, ...], function: str
) -> tuple[list[records.Record], Callable[..., Any]]:
    module, name = function.split(":")
    paths = (
        [RESULTS / files]
        if isinstance(files, str)
        else [RESULTS / file for file in files if (RESULTS / file).exists()]
    )
    runs = [run for path in paths for run in records.read(path)]
    return runs, getattr(importlib.import_module(module), name)
