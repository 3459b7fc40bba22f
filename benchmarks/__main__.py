"""The command line `python -m benchmarks NAME [options]`.

Each command lives in a module of its own, which defines

- `add_arguments(parser: argparse.ArgumentParser) -> None`, the command's options, and
- `main(arguments: argparse.Namespace) -> int`, the work, returning the exit status, or `RUN`,
  which names a function of another module for that,

and has a line in `SUMMARIES`. Only the chosen command's module is imported, and what it runs only
then, so help is quick and a command asks only for the parts it uses.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

#: One line of help for each command. Most write their results to the folder `out`.
SUMMARIES = {
    "batches": "rows from a memory-mapped file: memory and speed of a fit",
    "bnn": "Bayesian networks on UCI sets by fifteen methods",
    "curvature": "time Newton steps and Gauss-Newton matrices",
    "demo": "fit three models on both backends, compare with NUTS",
    "discrete": "programs with discrete latent sites: gradients, fits and large data",
    "evidence": "log evidence of fits against a hundred programs where it is known",
    "first-result": "how long the first answer takes, beside SVI and NUTS",
    "fit-many": "a thousand data sets by fit_many beside fit, ranks and cost",
    "forecasting": "forecast real series, ADVI against ours",
    "gpu": "steps and fits on an accelerator in a few minutes",
    "images": "classify images from few, ADVI against ours",
    "implicit": "guides without a density against exact draws",
    "kernels": "compare Stein kernels on known targets",
    "horseshoe": "networks that find the inputs that matter",
    "kills": "kill and interrupt runs at random moments, see what is lost",
    "linearized": "linearised Laplace against the mode and draws of all weights",
    "logistic": "SVGD with variance reduction on logistic regression",
    "network-sets": "networks on UCI sets: fit, deep ensembles and MILE's recipe side by side",
    "network-truth": "outputs of small networks by every method against long chains",
    "noisy-scores": "Normal guides by noisy scores: the closed form against rivals with an oracle",
    "pages": "tables of the documentation, made anew from their records",
    "posteriordb": "judge engines by the reference posteriors of posteriordb",
    "queue": "the next runs of all studies that pages lack, until the time is over",
    "refit": "refits of ten programs to other arguments beside fresh fits",
    "regression": "SVGD with variance reduction on regression networks",
    "row-noise": "variance of gradients with flipout and the local reparameterisation",
    "scaling": "engines over many devices: equality, bytes of a step, predicted efficiency",
    "score-vi": "minibatch scores, ours against ADVI",
    "semi-exact": "moments and marginals of SVGD with and without semi-exact kernels",
    "sgmcmc": "stochastic gradient MCMC: speed, bias, modes and masses",
    "soak": "memory over many steps and many engines in one process",
    "speed": "time one step against hand-written code, the hosts and peers",
    "synthetic": "fit known targets, ours against its rivals",
    "trust": "right or wrong, trusted or not: engines and rivals on problems with known answers",
    "uncertainty": "predictions of two small networks and their uncertainty",
    "vision": "networks for images: cost of a step and predictions of six methods",
}
#: Modules of commands that are not called as their command is.
ELSEWHERE = {
    "horseshoe": "benchmarks.networks.horseshoe",
    "kills": "benchmarks.process.kills",
    "linearized": "benchmarks.networks.linearized",
    "network-sets": "benchmarks.network_truth.sets",
    "soak": "benchmarks.process.soak",
}
# name on the command line -> (module, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    name: (ELSEWHERE.get(name, f"benchmarks.{name.replace('-', '_')}"), summary)
    for name, summary in SUMMARIES.items()
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
    module = importlib.import_module(COMMANDS[arguments.command][0])
    where, _, name = getattr(module, "RUN", ":main").partition(":")
    status: int = getattr(importlib.import_module(where) if where else module, name)(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
