"""References are made, and every chosen method is judged on every chosen network."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, records
from benchmarks.images.training import Book
from benchmarks.network_truth import report
from benchmarks.network_truth.figures import figures
from benchmarks.network_truth.methods import (
    METHODS,
    all_finite,
    flat_and_thinned,
    is_there,
    run_method,
    what_it_says,
)
from benchmarks.network_truth.networks import NETWORKS, Bound, bound
from benchmarks.network_truth.outputs import Reference, predicted
from benchmarks.records import Record
from benchmarks.study import forget_programs
from benchmarks.trust.methods import Fitted, Size

#: Share of a recipe's steps that a small run takes.
SMALL = 0.02
#: A reference is kept whose outputs have at most this R-hat.
R_HAT = 1.05
#: Draws at most of which a reference is made.
REFERENCE_DRAWS = 8_000
#: Benchmark of the records of references.
REFERENCE = "network-truth reference"
#: Benchmark of the records of Stein's equations.
EQUATIONS = "network-truth equations"
#: Networks whose curvature is small enough to be differentiated: one output or two, D to 602.
EQUATIONS_OF = ("curve", "moons", "curve-spread", "curve-deep", "moons-deep", "diabetes")


class ChainsDisagree(RuntimeError):
    """The chains of a reference do not agree, and it is not kept."""


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line says; the exit status."""
    if arguments.list:
        print(report.lists(arguments.folder))
        return 0
    import torch

    # Networks this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(arguments.out / "network-truth.jsonl", arguments.resume, arguments.retry_failed)
    try:
        work = _references if arguments.references else _runs
        found = list((_equations if arguments.equations else work)(arguments, book))
    except LookupError as error:
        print(f"network-truth: {error.args[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("network-truth: interrupted; --resume goes on from here", file=sys.stderr)
        return 130
    finally:
        if book.path.exists():
            report.write(records.read(book.path), arguments.out)
    return int(all(record.failed for record in found))


def _references(arguments: argparse.Namespace, book: Book) -> Iterator[Record]:
    """Make the references, the smallest first."""
    for name in arguments.networks or NETWORKS:
        settings = {
            "chains": arguments.chains,
            "warm-up": arguments.warm_up,
            "draws": arguments.draws,
        }
        record = Record(REFERENCE, "NUTS", "numpyro", name, 0, settings)

        def work(record: Record, name: str = name) -> None:
            reference = made(name, record.settings)
            record.figures = {**reference.about}
            record.figures.pop("settings")
            reference.save(arguments.folder / f"{name}.npz")

        record = book.run(record, work, go_on_after=(Exception,))
        print(f"{name}: {record.error or record.figures}", flush=True)
        yield record


def made(name: str, settings: dict[str, Any]) -> Reference:
    """The reference of a network, by NumPyro's NUTS in single precision.

    Raises
    ------
    ChainsDisagree
        Their outputs have a larger R-hat than is allowed, or a draw is not finite.
    """
    from benchmarks.trust.numpyro_methods import host_nuts

    with_rows, started = bound(NETWORKS[name], "numpyro"), time.process_time()
    fitted = host_nuts(
        with_rows.program, 0, settings["chains"], settings["warm-up"], settings["draws"]
    )
    seconds = time.process_time() - started
    draws, shape = flat_and_thinned(fitted, REFERENCE_DRAWS)
    if not all_finite(draws):
        raise ChainsDisagree("a draw is not finite")
    found = predicted("numpyro", with_rows.program.model, draws, with_rows.held_out)
    said = what_it_says(fitted, found.values, shape)
    chains = found.values.reshape(*shape, -1)
    half = shape[0] // 2
    # Of one chain its two halves.
    first, second = (chains[:half], chains[half:]) if half else np.array_split(chains, 2, axis=1)
    apart = (first.mean((0, 1)) - second.mean((0, 1))) / found.values.std(0)
    if not said["R-hat"] <= R_HAT:
        raise ChainsDisagree(
            f"R-hat of outputs is {said['R-hat']:.3f}, above {R_HAT}; the halves of the chains are "
            f"{np.sqrt(np.square(apart).mean()):.2f} sd apart: more chains or draws are needed"
        )
    return Reference.of(
        found,
        {
            "settings": settings,
            "R-hat": said["R-hat"],
            "least effective": min(said["bulk ESS"], said["tail ESS"]),
            "halves apart": float(np.sqrt(np.square(apart).mean())),
            "divergences": fitted.divergences,
            "evaluations": fitted.evaluations,
            "processor seconds": seconds,
            "dimension": NETWORKS[name].dimension,
        },
    )


def _equations(arguments: argparse.Namespace, book: Book) -> Iterator[Record]:
    """What Stein's equations say of the outputs' means, at draws of `fit`."""
    from benchmarks.network_truth import equations

    for name in arguments.networks or EQUATIONS_OF:
        record = Record(EQUATIONS, "Stein's equations", "numpyro", name, 0)

        def work(record: Record, name: str = name) -> None:
            with_rows = bound(NETWORKS[name], "numpyro")
            answer = run_method("fit", "numpyro", with_rows.program, 0, Size(1.0))
            reference = Reference.load(arguments.folder / f"{name}.npz")
            record.figures = equations.figures(with_rows, answer.fitted.draws, reference)

        record = book.run(record, work, go_on_after=(Exception,))
        print(f"{name}: {record.error or record.figures}", flush=True)
        yield record


def _runs(arguments: argparse.Namespace, book: Book) -> Iterator[Record]:
    """Judge the methods, on the smallest networks first.

    Raises
    ------
    LookupError
        A network that was asked for has no reference, or none has.
    """
    folder: Path = arguments.folder
    names = [name for name in NETWORKS if (folder / f"{name}.npz").exists()]
    if arguments.networks:
        missing = [name for name in arguments.networks if name not in names]
        names = [name for name in arguments.networks if name in names]
        if missing:
            raise LookupError(
                f"no reference of {', '.join(missing)} in {folder}; make it with "
                f"`python -m benchmarks network-truth --references --networks {missing[0]}`"
            )
    if not names:
        raise LookupError(f"no references in {folder}; make them with --references")
    backends = ("numpyro", "pyro") if arguments.backend == "both" else (arguments.backend,)
    for name in names:
        reference = Reference.load(folder / f"{name}.npz")
        for backend in backends:
            try:
                with_rows = bound(NETWORKS[name], backend)
            except datasets.MissingDataError as error:
                print(f"{name}: {error}", file=sys.stderr)
                break
            for method in arguments.methods:
                if not is_there(method, backend):
                    print(f"{name}, {backend}: there is no {method} yet", file=sys.stderr)
                    continue
                for seed in range(arguments.seeds):
                    share = SMALL if arguments.small else 1.0
                    yield one(name, backend, method, seed, share, with_rows, reference, book)


def one(
    name: str,
    backend: str,
    method: str,
    seed: int,
    share: float,
    with_rows: Bound,
    reference: Reference,
    book: Book,
) -> Record:
    """One run and its record, in the file then."""
    settings = {"about": METHODS[method].about, "share": share}
    record = Record("network-truth", method, backend, name, seed, settings)

    def work(record: Record) -> None:
        with warnings.catch_warnings():
            # Of hosts about their own internals.
            warnings.simplefilter("ignore")
            forget_programs()
            started = time.process_time()
            answer = run_method(
                method, backend, with_rows.program, seed, Size(share), with_rows.held_out
            )
            record.figures = {
                "dimension": NETWORKS[name].dimension,
                "evaluations": answer.fitted.evaluations,
                "processor seconds": time.process_time() - started,
            }
            draws, shape = flat_and_thinned(answer.fitted)
            if not all_finite(draws):
                record.figures |= thrown(answer.fitted)
                return
            found = predicted(
                backend, with_rows.program.model, draws, with_rows.held_out, answer.linear_at
            )
            record.figures |= figures(found, reference)
            record.figures |= what_it_says(answer.fitted, found.values, shape)

    record = book.run(record, work, go_on_after=(Exception,))
    print(report.said(record), flush=True)
    return record


def thrown(fitted: Fitted) -> dict[str, Any]:
    """Figures of draws that are not finite, of which chains have no R-hat either."""
    told = [*fitted.reasons, *(["draws that are not finite"] if fitted.chains else [])]
    trusted = not fitted.chains and fitted.trusted is not False
    wrong = {"right": False, "reasons": ["draws that are not finite"]}
    return wrong | {"trusted": trusted, "level": fitted.level, "told": told}
