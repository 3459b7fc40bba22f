"""The command line `python -m benchmarks NAME [options]`.

Each command lives in a module of its own, which defines

- `add_arguments(parser: argparse.ArgumentParser) -> None`, the command's options, and
- `main(arguments: argparse.Namespace) -> int`, the work, returning the exit status;

and is registered by one line of `COMMANDS`. Only the chosen command's module is imported, so help
is quick and a command asks only for the parts it uses.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

# name on the command line -> (module, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "batches": (
        "benchmarks.batches",
        "rows from a memory-mapped file: memory and speed of a fit, write out/",
    ),
    "bnn": ("benchmarks.bnn", "Bayesian networks on UCI sets by fifteen methods, write out/"),
    "curvature": (
        "benchmarks.curvature",
        "time Newton steps and Gauss-Newton matrices, write out/",
    ),
    "demo": ("benchmarks.demo", "fit three models on both backends, compare with NUTS, write out/"),
    "discrete": (
        "benchmarks.discrete",
        "programs with discrete latent sites: gradients, fits and large data, write out/",
    ),
    "evidence": (
        "benchmarks.evidence",
        "log evidence of fits against a hundred programs where it is known, write out/",
    ),
    "first-result": (
        "benchmarks.first_result",
        "how long the first answer takes, beside SVI and NUTS, write out/",
    ),
    "fit-many": (
        "benchmarks.fit_many",
        "a thousand data sets by fit_many beside fit, ranks and cost, write out/",
    ),
    "forecasting": (
        "benchmarks.forecasting",
        "forecast real series, ADVI against ours, write out/",
    ),
    "gpu": ("benchmarks.gpu", "steps and fits on an accelerator in a few minutes, write out/"),
    "images": ("benchmarks.images", "classify images from few, ADVI against ours, write out/"),
    "implicit": (
        "benchmarks.implicit",
        "guides without a density against exact draws, write out/",
    ),
    "kernels": ("benchmarks.kernels", "compare Stein kernels on known targets, write out/"),
    "horseshoe": (
        "benchmarks.networks.horseshoe",
        "networks that find the inputs that matter, write out/",
    ),
    "kills": (
        "benchmarks.process.kills",
        "kill and interrupt runs at random moments, see what is lost, write out/",
    ),
    "linearized": (
        "benchmarks.networks.linearized",
        "linearised Laplace against the mode and draws of all weights, write out/",
    ),
    "logistic": (
        "benchmarks.logistic",
        "SVGD with variance reduction on logistic regression, write out/",
    ),
    "network-sets": (
        "benchmarks.network_truth.sets",
        "networks on UCI sets: fit, deep ensembles and MILE's recipe side by side, write out/",
    ),
    "network-truth": (
        "benchmarks.network_truth",
        "outputs of small networks by every method against long chains, write out/",
    ),
    "noisy-scores": (
        "benchmarks.noisy_scores",
        "Normal guides by noisy scores: the closed form against rivals with an oracle, write out/",
    ),
    "pages": ("benchmarks.pages", "tables of the documentation, made anew from their records"),
    "posteriordb": (
        "benchmarks.posteriordb",
        "judge engines by the reference posteriors of posteriordb, write out/",
    ),
    "queue": (
        "benchmarks.queue",
        "the next runs of all studies that pages lack, until the time is over, write out/",
    ),
    "refit": (
        "benchmarks.refit",
        "refits of ten programs to other arguments beside fresh fits, write out/",
    ),
    "regression": (
        "benchmarks.regression",
        "SVGD with variance reduction on regression networks, write out/",
    ),
    "row-noise": (
        "benchmarks.row_noise",
        "variance of gradients with flipout and the local reparameterisation, write out/",
    ),
    "scaling": (
        "benchmarks.scaling",
        "engines over many devices: equality, bytes of a step, predicted efficiency, write out/",
    ),
    "score-vi": ("benchmarks.score_vi", "minibatch scores, ours against ADVI, write out/"),
    "semi-exact": (
        "benchmarks.semi_exact",
        "moments and marginals of SVGD with and without semi-exact kernels, write out/",
    ),
    "sgmcmc": (
        "benchmarks.sgmcmc",
        "stochastic gradient MCMC: speed, bias, modes and masses, write out/",
    ),
    "soak": (
        "benchmarks.process.soak",
        "memory over many steps and many engines in one process, write out/",
    ),
    "speed": ("benchmarks.speed", "time one step against hand-written code, the hosts and peers"),
    "synthetic": ("benchmarks.synthetic", "fit known targets, ours against its rivals, write out/"),
    "trust": (
        "benchmarks.trust",
        "right or wrong, trusted or not: fit, engines and rivals on problems with known answers",
    ),
    "uncertainty": (
        "benchmarks.uncertainty",
        "predictions of two small networks and their uncertainty, write out/",
    ),
    "vision": (
        "benchmarks.vision",
        "networks for images: cost of a step and predictions of six methods, write out/",
    ),
}


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Make the parser; the options of `chosen`, and of no other command, are added to it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", metavar="NAME", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named command and return its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = argv[0] if argv and argv[0] in COMMANDS else None
    arguments = build_parser(chosen).parse_args(argv)
    status: int = importlib.import_module(COMMANDS[arguments.command][0]).main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
