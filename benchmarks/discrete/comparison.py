"""All parts, their records and the table of these."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

from benchmarks import records
from benchmarks.discrete.hosts import Host, host_of
from benchmarks.discrete.programs import PROGRAMS, Draws, Program, chain, large_mixture, series
from benchmarks.study import Study, backends_of
from benchmarks.timing import alternate, ratio
from benchmarks.trust.judge import judge
from ppl_ext.statistics.convergence import split_r_hat

#: Positions that are evaluated at once.
POSITIONS = 64
#: Gradients one after another in a compiled loop of NumPyro, and their figures.
GRADIENTS, LOOPED = 1000, ", in a loop"
#: Components and rows of a batch of the large mixture.
COMPONENTS, BATCH = 10, 1000
#: Figures of gradients, as ratios.
BESIDE, MANY = "one beside the host's", "many beside one"
#: Chains of a reference, and the entry of its file that has the discrete site.
CHAINS, ASSIGNED = 4, "of the discrete site"


def run(arguments: argparse.Namespace) -> int:
    """Run the parts that are asked for; the exit status."""
    chosen = arguments.programs or list(PROGRAMS)
    unknown = sorted(set(chosen) - set(PROGRAMS))
    if unknown:
        print(f"Expected programs among {list(PROGRAMS)}, found {unknown}.")
        return 2
    hosts = backends_of(arguments.backend)
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("discrete", arguments.out, **resumed)
    for name in hosts:
        host = host_of(name)
        for program in chosen if "gradient" in arguments.parts else ():
            _recorded(study, host, "gradient", program, {"steps": GRADIENTS}, _gradient)
        for steps in arguments.lengths if "gradient" in arguments.parts else ():
            settings = {"steps": steps}
            name = "gradient of a chain"
            _recorded(study, host, name, f"{steps} steps", settings, _of_long_chain)
        kept = {"references": str(arguments.out / "discrete-references"), "long": arguments.long}
        for program in chosen if "fit" in arguments.parts else ():
            settings = {**kept, "fit": {"target_ess": arguments.ess, "budget": arguments.budget}}
            _recorded(study, host, "fit", program, settings, _fit)
        for program in chosen if "nuts" in arguments.parts else ():
            settings = {**kept, "draws": arguments.draws}
            _recorded(study, host, "NUTS", program, settings, _own_nuts)
        if "large" in arguments.parts:
            for method in ("SVGD", "SVI"):
                settings = {"rows": arguments.rows, "steps": arguments.steps, "method": method}
                _recorded(study, host, f"large, {method}", "large mixture", settings, _large)
    return study.report(study.overview())


def _recorded(study: Study, host: Host, part: str, program: str, settings: Any, work: Any) -> None:
    study.run(part, host.name, program, 0, settings, partial(work, host, program, settings))


def _built(host: Host, each: Program) -> tuple[Any, tuple[Any, ...]]:
    return each.build(host), tuple(map(host.array, each.arrays))


def _gradient(host: Host, program: str, settings: Any) -> dict[str, float]:
    """What a gradient costs, as ratios and in milliseconds."""
    built, steps = _built(host, PROGRAMS[program]), settings["steps"]
    called = _costs(host.gradients(*built, POSITIONS))
    if host.is_pyro:
        return called
    looped = _costs(host.gradients(*built, POSITIONS, steps), steps)
    return {**called, **{f"{name}{LOOPED}": value for name, value in looped.items()}}


def _of_long_chain(host: Host, program: str, settings: Any) -> dict[str, float]:
    """What a gradient of a hidden Markov chain of many steps costs; what is set up, in seconds."""
    started = time.perf_counter()
    cases = host.gradients(chain(host), (host.array(series(settings["steps"])),), POSITIONS)
    cases["ours"]()
    return {"seconds to the first": time.perf_counter() - started, **_costs(cases)}


def _costs(cases: Any, steps: int = 1) -> dict[str, float]:
    times = alternate(cases, rounds=5, seconds=0.1)
    found = {f"ms, {case}": 1e3 / steps * float(np.median(each)) for case, each in times.items()}
    return {
        **found,
        BESIDE: ratio(times, "ours", "host"),
        MANY: ratio(times, "many", "ours"),
    }


def _fit(host: Host, program: str, settings: Any) -> dict[str, Any]:
    """How far ``fit`` is from NumPyro's NUTS with enumeration."""
    each = PROGRAMS[program]
    found = host.fit(*_built(host, each), each.assigned, **settings["fit"])
    return {**found.figures, **_distances(each, found.draws, found.assigned, program, settings)}


def _own_nuts(host: Host, program: str, settings: Any) -> dict[str, Any]:
    """How far the host's own NUTS, in one chain, is from NumPyro's four long ones."""
    each = PROGRAMS[program]
    found = host.nuts(*_built(host, each), 500, settings["draws"])
    return {**found.figures, **_distances(each, found.draws, None, program, settings)}


def _reference(program: str, settings: Any) -> dict[str, np.ndarray]:
    """Long chains of NumPyro's NUTS and assignments at their draws, kept in a file."""
    path = Path(settings["references"]) / f"{program}-{settings['long']}.npz"
    if not path.exists():
        host, each = host_of("numpyro"), PROGRAMS[program]
        assigned = None if each.steps else each.assigned
        found = host.long_nuts(*_built(host, each), assigned, CHAINS, settings["long"])
        values = found.assigned if each.steps is None else paths(*each.steps(found.draws))
        assert values is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: dict[str, Any] = {ASSIGNED: values, **found.draws}
        np.savez(path, **kept)
    return dict(np.load(path))


def forward_sums(potentials: np.ndarray, before: int) -> list[np.ndarray]:
    """By step, logarithms of sums over all paths up to each state, (S, R, K)."""
    sums = [potentials[:, :, 0, before]]
    for t in range(1, potentials.shape[2]):
        sums.append(special.logsumexp(sums[-1][..., None] + potentials[:, :, t], -2))
    return sums


def paths(potentials: np.ndarray, before: int, values: np.ndarray) -> np.ndarray:
    """Values (S, T, R) of one path a series, drawn by a pass forward and one backward.

    By hand: the sums of NumPyro's ``infer_discrete`` end in an error with ``scan``.
    """
    rng, forward = np.random.default_rng(0), forward_sums(potentials, before)

    def drawn(logits: np.ndarray) -> np.ndarray:
        noise = rng.gumbel(size=logits.shape)
        return (logits + noise).argmax(-1)

    states = [drawn(forward[-1])]
    for t in reversed(range(len(forward) - 1)):
        into = np.take_along_axis(potentials[:, :, t + 1], states[-1][..., None, None], -1)[..., 0]
        states.append(drawn(forward[t] + into))
    return values[np.stack(states[::-1], 1)]


def _distances(
    program: Program, draws: Draws, assigned: Any, name: str, settings: Any
) -> dict[str, Any]:
    """The judgement of marginals, and the greatest error of a probability of an assignment.

    Where labels can be exchanged they are put in order first, and of assignments the probabilities
    are compared that two rows go together.
    """
    reference = _reference(name, settings)
    known = reference.pop(ASSIGNED)
    free = program.label_free or (lambda given: given)
    ours, theirs = _scalars(free(draws)), _scalars(free(reference))
    columns = np.stack(list(theirs.values()), -1).reshape(CHAINS, -1, len(theirs))
    figures = {
        **judge(ours, theirs).figures(),
        "R-hat of the reference": float(split_r_hat(columns.transpose(1, 0, 2)).max()),
    }
    if assigned is None:
        return figures
    values = np.arange(max(int(assigned.max()), int(known.max())) + 1)
    one, two = (_probabilities(program, each, values) for each in (assigned, known))
    error = np.sqrt(two * (1.0 - two) * (1.0 / len(assigned) + 1.0 / len(known)))
    difference = np.abs(one - two)
    figures["assignments"] = float(difference.max())
    figures["their sampling error"] = float(error.max())
    return figures


def _scalars(draws: Draws) -> Draws:
    """Columns of single numbers."""
    return {
        f"{name}[{number}]": column
        for name, value in sorted(draws.items())
        for number, column in enumerate(np.reshape(value, (len(value), -1)).T.astype(float))
    }


def _probabilities(program: Program, assigned: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Probabilities of each value of each site, or of two sites' values being the same."""
    sites = assigned.reshape(len(assigned), -1)
    if program.seen is not None:
        sites = sites[:, program.seen.ravel()]
    if program.label_free is None:
        return np.stack([(sites == value).mean(0) for value in values])
    return np.stack([(sites == column[:, None]).mean(0) for column in sites.T])


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


def page_table(runs: list[records.Record]) -> str:
    """The table on the page: one row for each program, the figures of both packages."""
    rows: dict[str, dict[str, str]] = {}
    for each in runs:
        name = records.LABELS[each.backend]
        row = rows.setdefault(each.model, {"program": each.model.replace("_", " ")})
        if each.method == "fit" and each.failed:
            row[f"fit, {name}"] = "failed"
        elif each.method == "fit":
            figures = each.figures
            verdict = f"{figures['verdict']}, {'right' if figures['right'] else 'wrong'}"
            row[f"fit, {name}"] = verdict
            row[f"assignments, {name}"] = f"{figures['assignments']:.3f}"
        elif each.method == "gradient":
            beside = each.figures.get(f"{BESIDE}{LOOPED}", each.figures[BESIDE])
            row[f"gradient, {name}"] = f"{beside:.2f}"
            row[f"64 positions, {name}"] = f"{each.figures[MANY]:.1f}"
    kept = [row for name, row in rows.items() if name in PROGRAMS]
    columns = ["program"] + [
        f"{column}, {name}"
        for name in records.LABELS.values()
        for column in ("fit", "assignments", "gradient", "64 positions")
    ]
    return records.markdown_table([{c: row.get(c, "") for c in columns} for row in kept], columns)


#: Methods of the large mixture as the page names them.
LARGE = {"SVGD": "`SVGD`, 8 particles", "SVI": "the host's `SVI` with `TraceEnum_ELBO`"}


def large_table(runs: list[records.Record]) -> str:
    """The table of the large mixture on the page."""
    rows = {name: {"": heading} for name, heading in LARGE.items()}
    for each in runs:
        if each.method.startswith("large"):
            row, backend = rows[each.settings["method"]], each.backend
            row[f"seconds, {backend}"] = f"{each.figures['seconds']:.0f}"
            row[f"log density, {backend}"] = f"{each.figures['log density']:.2f}"
    columns = {"": ""}
    for backend, name in records.LABELS.items():
        columns |= {
            f"seconds, {backend}": f"seconds, {name}",
            f"log density, {backend}": "log density",
        }
    return records.markdown_table(list(rows.values()), columns)
