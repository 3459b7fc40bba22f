"""All parts, their records and the table of these."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy import special, stats

from benchmarks import records
from benchmarks.discrete.hosts import Host, host_of
from benchmarks.discrete.programs import PROGRAMS, Program, large_mixture
from benchmarks.timing import alternate, ratio

#: Positions that are evaluated at once.
POSITIONS = 64
#: Components and rows of a batch of the large mixture.
COMPONENTS, BATCH = 10, 1000
DRAWS = 1000


def run(arguments: argparse.Namespace) -> int:
    """Run the parts that are asked for; the exit status."""
    chosen = arguments.programs or list(PROGRAMS)
    unknown = sorted(set(chosen) - set(PROGRAMS))
    if unknown:
        print(f"Expected programs among {list(PROGRAMS)}, found {unknown}.")
        return 2
    hosts = ("numpyro", "pyro") if arguments.backend == "both" else (arguments.backend,)
    path = arguments.out / "discrete.jsonl"
    path.unlink(missing_ok=True)
    for name in hosts:
        host = host_of(name)
        for program in chosen if "gradient" in arguments.parts else ():
            _recorded(path, host, "gradient", program, {}, _gradient)
        for program in chosen if "fit" in arguments.parts else ():
            _recorded(path, host, "fit", program, {}, _fit)
        if "large" in arguments.parts:
            for method in ("SVGD", "SVI"):
                settings = {"rows": arguments.rows, "steps": arguments.steps, "method": method}
                _recorded(path, host, f"large, {method}", "large mixture", settings, _large)
    runs = records.read(path)
    table = _table(runs)
    records.write_text(arguments.out / "discrete.md", table)
    print(table)
    print(f"Wrote {arguments.out}.")
    return int(all(each.failed for each in runs))


def _recorded(path: Any, host: Host, part: str, program: str, settings: Any, work: Any) -> None:
    record = records.Record("discrete", part, host.name, program, 0, settings)
    with records.recorded_run(path, record, go_on_after=(Exception,)):
        record.figures.update(work(host, program, settings))
    print(f"{part}, {program}, {host.name}: done", flush=True)


def _built(host: Host, each: Program) -> tuple[Any, tuple[Any, ...]]:
    return each.build(host), tuple(map(host.array, each.arrays))


def _gradient(host: Host, program: str, settings: Any) -> dict[str, float]:
    """What a gradient costs, as ratios and in milliseconds."""
    cases = host.gradients(*_built(host, PROGRAMS[program]), POSITIONS)
    times = alternate(cases, rounds=5, seconds=0.1)
    found = {f"ms, {case}": 1e3 * float(np.median(each)) for case, each in times.items()}
    return {
        **found,
        "one beside the host's": ratio(times, "ours", "host"),
        "many beside one": ratio(times, "many", "ours"),
    }


def _fit(host: Host, program: str, settings: Any) -> dict[str, Any]:
    """How far ``fit`` is from NUTS, in standard deviations of it; labels are sorted away."""
    model, args = _built(host, PROGRAMS[program])
    verdict, ours = host.fit(model, args)
    theirs = host.nuts(model, args, DRAWS)
    worst = 0.0
    for name in ours:
        one, two = (each[name].reshape(len(each[name]), -1) for each in (ours, theirs))
        one, two = np.sort(one, -1), np.sort(two, -1)
        worst = max(worst, float(np.max(np.abs(one.mean(0) - two.mean(0)) / two.std(0))))
    return {"verdict": verdict, "greatest error of a mean": worst}


def _large(host: Host, program: str, settings: Any) -> dict[str, float]:
    """Seconds, and the log predictive density of rows that were held out."""
    made = large_mixture(settings["rows"], COMPONENTS)
    y, held_out, best = made
    fitted = host.engine if settings["method"] == "SVGD" else host.svi
    model = PROGRAMS["mixture"].build(host)
    options = {"subsample_size": BATCH, "components": COMPONENTS}
    points, seconds = fitted(model, (host.array(y.astype(np.float32)),), options, settings["steps"])
    terms = np.log(points["weights"])[:, None] + stats.norm.logpdf(
        held_out[:, None], points["location"][:, None], points["scale"][:, None]
    )
    rows = special.logsumexp(terms, -1)
    density = special.logsumexp(rows, 0) - np.log(len(rows))
    return {"seconds": seconds, "log density": float(density.mean()), "of the truth": best}


def _table(runs: list[records.Record]) -> str:
    """One row for each run of each part."""
    lines = ["# Discrete latent sites", "", "Made by `python -m benchmarks discrete`.", ""]
    for part in dict.fromkeys(each.method for each in runs):
        rows = []
        for each in runs:
            if each.method != part:
                continue
            row = {"program": each.model, "backend": each.backend}
            if each.failed:
                row["failed"] = str(each.error)
            for name, value in each.figures.items():
                row[name] = f"{value:.3g}" if isinstance(value, float) else str(value)
            rows.append(row)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = [{name: row.get(name, "") for name in columns} for row in rows]
        lines += [f"## {part}", "", records.markdown_table(table, columns)]
    return "\n".join(lines)
