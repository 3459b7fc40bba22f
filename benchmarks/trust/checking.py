"""`python -m benchmarks trust --check`: does `check` refuse what is wrong, and nothing else?

Right draws of every problem, and planted faults, are checked by a witness each and all together,
with one reference fit for all draws of a problem. Written to check.jsonl, check.md and check.png.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.images.training import Book
from benchmarks.records import Record
from benchmarks.study import pyplot
from benchmarks.trust.faults import DRAWS, FAULTS
from benchmarks.trust.methods import Fitted, as_arrays
from benchmarks.trust.problems import Problem, Program
from benchmarks.trust.report import grouped
from benchmarks.trust.runs import judged
from benchmarks.trust.target import PACKAGES, Floats, precision

#: Beyond so many dimensions a problem is left out.
MOST_DIMENSIONS = 100
#: Engines that are stopped early, with their options and steps.
ENGINES: dict[str, tuple[dict[str, Any], int]] = {
    "SVGD": ({"num_particles": 100}, 30),
    "GSM": ({}, 5),
}
#: Sources of problems that engines are stopped on.
STOPPED_ON = ("embedded", "zoo")

ABOUT = f"""Made by `python -m benchmarks trust --check`. Of every problem with exact or reference \
draws and at most {MOST_DIMENSIONS} dimensions {DRAWS:,} right draws are checked, and as many with \
a planted fault in one random unconstrained coordinate; *one mode* is the heavier of two, where \
they lie apart. But for the cut tail, faults count where the judge of `trust` calls the draws \
wrong. *Prior* are draws from the prior, and engines are stopped after a few steps. *Refused* is \
the level "not trusted", *undecided* "approximate" without agreement, *confirmed* agreement with \
chains.
"""


def run(arguments: argparse.Namespace, problems: Sequence[Problem]) -> int:
    """Run the study and write what it found; the exit status."""
    import torch

    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(arguments.out / "check.jsonl", arguments.resume, arguments.retry_failed)
    # In an order that is random, so that those within the limit stand for all.
    order = np.random.default_rng(23).permutation(len(problems))
    for backend in arguments.backends:
        ends = time.perf_counter() + arguments.limit
        for number in order:
            if time.perf_counter() > ends:
                break
            problem = problems[int(number)]
            if not problem.proper or not (arguments.double or problem.single):
                continue
            with precision(backend, double=arguments.double), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for record in checked(problem, backend, arguments, book):
                    print(said(record), flush=True)
    found = records.read(book.path)
    write(found, arguments.out)
    print((arguments.out / "check.md").read_text(encoding="utf-8"))
    return int(not found)


def checked(
    problem: Problem, backend: str, arguments: argparse.Namespace, book: Book
) -> Iterator[Record]:
    """Every planted set of draws of a problem in a host, checked."""
    bench = Bench(problem, backend)
    if bench.program.written.dim > MOST_DIMENSIONS:
        return
    settings = {"double": arguments.double, "draws": DRAWS}
    for seed in range(arguments.seeds):
        for name, draws in bench.planted(seed):
            figures = {"kind": problem.kind, "dimension": bench.program.written.dim}
            record = Record("check", name, backend, problem.name, seed, settings, figures)

            def work(record: Record, draws: Callable[[], Any] = draws, seed: int = seed) -> None:
                is_particles = record.method.startswith("SVGD")
                record.figures |= bench.figures(draws(), seed, is_particles=is_particles)

            yield book.run(record, work, go_on_after=(Exception,))


class Bench:
    """A problem in a host, whose reference fit serves all draws."""

    def __init__(self, problem: Problem, backend: str) -> None:
        self.problem, self.backend = problem, backend
        self.host: Program = problem.program(backend)
        self.package = importlib.import_module(PACKAGES[backend])
        module = importlib.import_module(f"{PACKAGES[backend]}.check")
        args, kwargs = self.host.args, dict(self.host.kwargs)
        generator = np.random.default_rng(0)
        self.program: Any = module.program_of(self.host.model, args, kwargs, 0, generator)
        self._fit: Any = None

    def reference(self) -> Any:
        """The fit, made when it is first asked for."""
        from ppl_ext.check.check import CHECK_ESS, FOR_FIT
        from ppl_ext.fit.fit import BUDGET, fit

        if self._fit is None:
            options: dict[str, Any] = {
                "budget": int(FOR_FIT * BUDGET),
                "seconds": None,
                "exact": True,
            }
            options |= {"target_ess": CHECK_ESS, "progress_bar": False}
            generator = np.random.default_rng(1)
            self._fit = fit(self.program.ways, generator, 0, **options)
        return self._fit

    def planted(self, seed: int) -> Iterator[tuple[str, Callable[[], Mapping[str, Any] | None]]]:
        """Names of sets of draws, and what makes them; None where there is nothing wrong."""
        assert self.problem.reference is not None
        parameters = self.problem.reference()
        every = self.problem.sites.sites(parameters)
        sites = {name: np.asarray(every[name]) for name in self.program.shapes()}
        number = len(next(iter(sites.values())))
        generator = np.random.default_rng([seed, 7])

        def some() -> Floats:
            rows = generator.permutation(number)[: 2 * DRAWS]
            z = self.program.unconstrain({name: value[rows] for name, value in sites.items()})
            finite: Floats = z[np.isfinite(z).all(1)]
            return finite

        for name, (fault, always) in FAULTS.items():

            def made(fault: Any = fault, always: bool = always, name: str = name) -> Any:
                z = fault(some(), generator)
                if z is None:
                    return None
                if name == "right":
                    rows = generator.permutation(number)[:DRAWS]
                    return {site: value[rows] for site, value in sites.items()}
                draws = as_arrays(self.program.written.values(z))
                return draws if always or self._is_wrong(draws) else None

            yield name, made
        yield "prior", lambda: self._if_wrong(self._prior(seed))
        if self.problem.source in STOPPED_ON:
            for engine in ENGINES:

                def stopped(engine: str = engine) -> Mapping[str, Any] | None:
                    return self._if_wrong(self._stopped(engine, seed))

                yield f"{engine} stopped early", stopped

    def _is_wrong(self, draws: Mapping[str, Any]) -> bool:
        return judged(self.problem, Fitted(dict(draws), None))["right"] is False

    def _if_wrong(self, draws: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return None if draws is None or not self._is_wrong(draws) else draws

    def _prior(self, seed: int) -> dict[str, Any] | None:
        model, args, kwargs = self.host.model, self.host.args, dict(self.host.kwargs)
        names = list(self.program.shapes())
        if self.backend == "numpyro":
            import jax
            from numpyro.infer import Predictive

            predictive = Predictive(model, num_samples=DRAWS)
            try:
                drawn = predictive(jax.random.key(seed), *args, **kwargs)
            except NotImplementedError:  # of distributions that the host cannot draw from
                return None
        else:
            import pyro
            from pyro.infer import Predictive

            pyro.set_rng_seed(seed)
            drawn = Predictive(model, num_samples=DRAWS, return_sites=names)(*args, **kwargs)
        found = as_arrays({name: drawn[name] for name in names})
        # Pyro keeps plates' dimensions, whose size is 1 where a site is in none of them.
        shapes = self.program.shapes()
        return {name: value.reshape(DRAWS, *shapes[name]) for name, value in found.items()}

    def _stopped(self, engine: str, seed: int) -> dict[str, Any]:
        options, steps = ENGINES[engine]
        args, kwargs = self.host.args, {"progress_bar": False, **self.host.kwargs}
        adam: Any = ()
        if self.backend == "numpyro":
            import jax
            import numpyro

            adam = (numpyro.optim.Adam(0.05),) if options else ()
            fitted = getattr(self.package, engine)(self.host.model, *adam, **options)
            result = fitted.run(jax.random.key(seed), steps, *args, **kwargs)
            drawn = {} if options else {"num_samples": DRAWS}
            return as_arrays(fitted.get_samples(result.state, **drawn))
        import pyro

        adam = (pyro.optim.Adam({"lr": 0.05}),) if options else ()
        fitted = getattr(self.package, engine)(self.host.model, *adam, seed=seed, **options)
        fitted.run(steps, *args, **kwargs)
        return as_arrays(fitted.get_samples(*(() if options else (DRAWS,))))

    def figures(
        self, draws: Mapping[str, Any] | None, seed: int, *, is_particles: bool = False
    ) -> dict[str, Any]:
        """What the check says of draws."""
        from ppl_ext.check.check import check
        from ppl_ext.check.source import Source

        if draws is None:
            return {"outcome": "no fault"}
        had_fit, started = self._fit is not None, time.perf_counter()
        generator = np.random.default_rng([seed, 11])
        kind: Any = "particles" if is_particles else "draws"
        source = Source("draws", kind, draws)
        verdict = check(
            source, self.program, generator, progress_bar=False, reference=self.reference
        )
        outcome = "refused" if verdict.level == "not trusted" else "undecided"
        return {
            "outcome": "confirmed" if verdict.trusted else outcome,
            "reasons": list(verdict.reasons),
            "stages": [stage.name for stage in verdict.cost],
            "evaluations": verdict.evaluations,
            "seconds": time.perf_counter() - started,
            "reference": "chains" in [stage.name for stage in verdict.cost],
            "made the reference": self._fit is not None and not had_fit,
        }


def said(record: Record) -> str:
    """A check in one line."""
    what = f"{record.model}, {record.backend}, {record.method}, seed {record.seed}"
    if record.error is not None:
        return f"{what}: {record.error.splitlines()[0]}"
    reasons = record.figures.get("reasons", [])
    return f"{what}: {record.figures['outcome']}" + (f" ({reasons[0]})" if reasons else "")


OUTCOMES = ("refused", "undecided", "confirmed")


def rows_of(found: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each host and fault, and one for all faults together."""
    rows = []
    done = [run for run in found if not run.failed and run.figures["outcome"] in OUTCOMES]
    for (backend,), of_host in grouped(done, lambda run: (run.backend,)).items():
        groups = dict(grouped(of_host, lambda run: (run.method,)))
        wrong = [run for run in of_host if run.method != "right"]
        for name, runs in [
            *((key[0], value) for key, value in groups.items()),
            ("all wrong", wrong),
        ]:
            if not runs:
                continue
            outcomes = [run.figures["outcome"] for run in runs]
            row: dict[str, Any] = {"backend": backend, "draws": name, "checks": len(runs)}
            row |= {outcome: outcomes.count(outcome) for outcome in OUTCOMES}
            row["share refused"] = f"{outcomes.count('refused') / len(runs):.1%}"
            cheap = sum(not run.figures["reference"] for run in runs)
            row["before a fit"] = f"{cheap / len(runs):.0%}"
            row["median evaluations"] = float(np.median([r.figures["evaluations"] for r in runs]))
            rows.append(row)
    return rows


def page_table(found: Sequence[Record]) -> str:
    """What the check says of right draws and of faults, for the page."""
    rows = [{**row, "package": records.LABELS[row["backend"]]} for row in rows_of(found)]
    columns = {
        "package": "package",
        "draws": "draws",
        "checks": "checks",
        **{outcome: outcome for outcome in OUTCOMES},
        "share refused": "share refused",
        "before a fit": "decided before a fit",
        "median evaluations": "median evaluations",
    }
    return records.markdown_table(rows, columns, digits=4)


def write(found: Sequence[Record], out: Path) -> None:
    """Write the report and the plot."""
    rows = rows_of(found)
    parts = [f"# check\n\n{ABOUT}", records.markdown_table(rows)]
    missed = [
        run
        for run in found
        if run.failed
        or (
            (run.figures["outcome"] in OUTCOMES)
            and (run.figures["outcome"] == "refused") is (run.method == "right")
        )
    ]
    parts.append("## Right draws that were not confirmed, and faults that were not refused\n")
    right = [run for run in found if not run.failed and run.method == "right"]
    missed += [run for run in right if run.figures["outcome"] == "undecided"]
    parts.append("\n".join(f"- {said(run)}" for run in missed) + "\n")
    records.write_text(out / "check.md", "\n".join(parts))
    plot(rows, out / "check.png")


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Shares of outcomes by fault."""
    if not rows:
        return
    plt = pyplot()
    hosts = list(dict.fromkeys(row["backend"] for row in rows))
    figure, axes = plt.subplots(1, len(hosts), figsize=(6 * len(hosts), 4), squeeze=False)
    for axis, host in zip(axes[0], hosts, strict=True):
        own = [row for row in rows if row["backend"] == host][::-1]
        left = np.zeros(len(own))
        for outcome, colour in zip(OUTCOMES, ("tab:red", "tab:gray", "tab:green"), strict=True):
            shares = np.array([row[outcome] / row["checks"] for row in own])
            names = [f"{row['draws']} ({row['checks']})" for row in own]
            axis.barh(names, shares, left=left, color=colour, label=outcome)
            left += shares
        axis.set(title=host, xlabel="share of checks", xlim=(0, 1))
    axes[0][-1].legend(fontsize="small", loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
