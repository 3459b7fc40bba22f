"""Engines on forced host devices, against one device; run as a module, in a process of its own.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.numpyro_ext.sharded \\
        '{"cases": [["SVGD", "full", "pd"]]}'

prints a line of JSON for each case. With ``process``, ``processes`` and ``port`` it is one of
several processes, of which the first prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType
from numpyro.infer import MCMC
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal

import numpyro_ext as nx
from benchmarks.scaling.collectives import collectives
from ppl_ext.engines.base import EngineShell
from ppl_ext.start import search
from tests.sharding.rounding import AMPLIFYING, CHANGES, allowed, in_last_bit

P, N, STEPS = 8, 64, 6


def whole(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(X @ w, s), obs=y)


def linear(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 3).expand([3]).to_event(1))
    with numpyro.plate("rows", N):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def batches(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("rows", X.shape[0], subsample_size=16) as i:
        numpyro.sample("y", dist.Normal(X[i] @ w, s), obs=y[i])


def by_argument(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N, subsample_size=len(X)):
        numpyro.sample("y", dist.Normal(X @ w, s), obs=y)


class Batches:
    """Batches of the rows in an order that depends on the epoch, the last one of four rows."""

    epoch = 0

    def __init__(self, size: int = 20) -> None:
        self.size = size

    def __len__(self) -> int:
        return -(-N // self.size)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        X, y = data()
        order = np.random.default_rng(self.epoch).permutation(N)
        for start in range(0, N, self.size):
            rows = order[start : start + self.size]
            yield X[rows], y[rows]


def sgd() -> Any:
    return optax.adam(0.01)


Make = Callable[..., Any]
ENGINES: dict[str, Make] = {
    "SVGD": lambda m, **k: nx.SVGD(m, sgd(), num_particles=P, **k),
    "SVGDVR": lambda m, **k: nx.SVGDVR(m, sgd(), num_particles=P, anchor_every=4, **k),
    "SVN": lambda m, **k: nx.SVN(m, num_particles=P, **k),
    "WGD": lambda m, **k: nx.WGD(m, sgd(), num_particles=P, **k),
    "DeepEnsemble": lambda m, **k: nx.DeepEnsemble(m, sgd(), num_particles=P, **k),
    "ProximalScoreVI": lambda m, **k: nx.ProximalScoreVI(
        m, AutoDiagonalNormal, solver=nx.Regression(num_samples=P), **k
    ),
    "ProximalScoreVI, gradient": lambda m, **k: nx.ProximalScoreVI(
        m, AutoDiagonalNormal, solver=nx.GradientSteps(num_samples=P), **k
    ),
    "GSM": lambda m, **k: nx.GSM(m, AutoMultivariateNormal, num_samples=P, **k),
    "BaM": lambda m, **k: nx.BaM(m, AutoMultivariateNormal, num_samples=P, **k),
    "FisherVI": lambda m, **k: nx.FisherVI(m, AutoDiagonalNormal, num_samples=P, **k),
    "LaplaceGGN": lambda m, **k: nx.LaplaceGGN(m, sgd(), **k),
}
MODELS = {"full": whole, "batches": batches}
EXACT = ("GSM", "BaM", "FisherVI")
#: Shape and axes of the mesh, whether its axes are explicit, and options of the Sharding.
LAYOUTS: dict[str, tuple[tuple[int, ...], str, bool, dict[str, str]]] = {
    "p": ((4,), "p", True, {"particles": "p"}),
    "p automatic": ((4,), "p", False, {"particles": "p"}),
    "p all-to-all": ((4,), "p", False, {"particles": "p", "exchange": "all-to-all"}),
    "d": ((4,), "d", True, {"rows": "d"}),
    "d automatic": ((4,), "d", False, {"rows": "d"}),
    "pd": ((2, 2), "pd", True, {"particles": "p", "rows": "d"}),
    "pd automatic": ((2, 2), "pd", False, {"particles": "p", "rows": "d"}),
    "pd all-to-all": (
        (2, 2),
        "pd",
        True,
        {"particles": "p", "rows": "d", "exchange": "all-to-all"},
    ),
}


def data(change: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows and responses, changed in their last bit or not."""
    rng = np.random.default_rng(0)
    kind = jnp.zeros(()).dtype
    X = rng.normal(size=(N, 3)).astype(kind)
    y = (X @ [1.0, -2.0, 0.5] + rng.normal(size=N)).astype(kind)
    return (X, y) if change is None else (in_last_bit(X, change), in_last_bit(y, change))


def sharding(layout: str) -> nx.Sharding:
    shape, names, explicit, options = LAYOUTS[layout]
    kind = AxisType.Explicit if explicit else AxisType.Auto
    mesh = jax.make_mesh(shape, tuple(names), axis_types=(kind,) * len(shape))
    return nx.Sharding(mesh, **options)


@contextmanager
def judging(judges: bool) -> Iterator[None]:
    """Have runs end with a judgement or without."""
    before, EngineShell._judges = EngineShell._judges, judges
    try:
        yield
    finally:
        EngineShell._judges = before


def on_host(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if not leaf.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def distance(found: Any, expected: Any) -> float:
    """The largest difference of two trees of arrays, relative where numbers are larger than 1."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    apart = [0.0]
    for one, two in pairs:
        a, b = on_host(one).astype(float), on_host(two).astype(float)
        apart.append(float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1.0), initial=0.0)))
    return max(apart) if all(np.isfinite(apart)) else np.inf


def run(name: str, model: str, change: int | None = None, **options: Any) -> tuple[Any, Any]:
    engine = ENGINES[name](MODELS[model], **options)
    given = {"progress_bar": False, "start": "host"}
    return engine, engine.run(jax.random.key(0), STEPS, *data(change), **given)


def of_engine(name: str, model: str, layout: str) -> dict[str, Any]:
    """Parameters, losses and draws of a run, against one device's, and what these may differ."""
    found = run(name, model, sharding=sharding(layout))
    laid = [leaf.sharding.spec for leaf in jax.tree.leaves(found[1].params)]
    return {
        **_apart(found, _alone(name, model)),
        "split": any("p" in str(spec) for spec in laid),
        "allowed": _allowed(name, model),
    }


def _apart(found: tuple[Any, Any], expected: tuple[Any, Any]) -> dict[str, float]:
    """How far two runs are from each other."""
    (engine, result), (other, by_other) = found, expected
    return {
        "params": distance(result.params, by_other.params),
        "losses": distance(jnp.asarray(result.losses), jnp.asarray(by_other.losses)),
        "draws": distance(engine.get_samples(result.state), other.get_samples(by_other.state)),
    }


@cache
def _alone(name: str, model: str) -> tuple[Any, Any]:
    return run(name, model)


@cache
def _allowed(name: str, model: str) -> dict[str, float]:
    """The greatest difference of a layout, by what is compared."""
    double = jax.config.read("jax_enable_x64")
    changes = () if double or name not in AMPLIFYING else CHANGES
    by_change = [_apart(run(name, model, change), _alone(name, model)) for change in changes]
    return {
        what: allowed("float64" if double else "float32", (each[what] for each in by_change))
        for what in ("params", "losses", "draws")
    }


def of_start(name: str, seed: str, layout: str) -> dict[str, Any]:
    """Particles of a run that searches for its start, against one device's."""
    rng = np.random.default_rng(int(seed))
    X, y = (rng.normal(size=shape).astype(np.float32) for shape in ((N, 3), (N,)))

    def started(**options: Any) -> Any:
        engine = ENGINES[name](linear, **options)
        return engine.run(jax.random.key(0), STEPS, X, y, progress_bar=False).params

    split = sharding(layout)
    with jax.set_mesh(split.mesh):
        found = started(sharding=split)
    return {"particles": distance(found, started())}


def of_after(name: str, model: str, layout: str) -> dict[str, Any]:
    """Data that lie on the mesh, a state that goes to a file and back, and what comes after."""
    split = sharding(layout)
    one, expected = _alone(name, model)
    X, y = data()
    named = jax.sharding.NamedSharding(split.mesh, jax.sharding.PartitionSpec(split.rows))
    engine = ENGINES[name](MODELS[model], sharding=split)
    with jax.set_mesh(split.mesh):
        X_there, y_there = jax.device_put(X, named), jax.device_put(y, named)
        key = jax.random.key(0)
        path = sys.argv[2]
        options: dict[str, Any] = {"progress_bar": False, "start": "host"}
        half = engine.run(key, STEPS // 2, X_there, y_there, **options)
        engine.save(path, half.state)
        again = ENGINES[name](MODELS[model], sharding=split)
        loaded = again.load(path, X_there, y_there)
        options = {"progress_bar": False}
        last = again.run(key, STEPS, X_there, y_there, init_state=loaded, **options)
        own = engine.run(key, STEPS, X_there, y_there, init_state=half.state, **options)
    alone = ENGINES[name](MODELS[model])
    back = alone.run(key, STEPS, X, y, init_state=alone.load(path, X, y), **options)
    draws = one.get_samples(expected.state)
    found = nx.to_arviz(one, expected.state, X, y, sharding=split, rng_key=key)
    plain = nx.to_arviz(one, expected.state, X, y, rng_key=key)
    predicted = nx.predictive_distribution(MODELS[model], draws, X, y, sharding=split)
    without = nx.predictive_distribution(MODELS[model], draws, X, y)
    return {
        "same layout": distance(last.params, own.params),
        "other layout": distance(last.params, back.params),
        "log_likelihood": distance(
            jnp.asarray(found.log_likelihood["y"].values),
            jnp.asarray(plain.log_likelihood["y"].values),
        ),
        "predicted": distance(
            jnp.asarray(predicted["mean"].values), jnp.asarray(without["mean"].values)
        ),
    }


def of_moved(name: str, model: str, layouts: str) -> dict[str, Any]:
    """What comes after a state that was saved on one layout, there and on another."""
    first, second = map(sharding, layouts.split(" to "))
    engine, half = run(name, model, sharding=first)
    engine.save(sys.argv[2], half.state)

    def after(state: Any = None, **options: Any) -> Any:
        other = engine if state is not None else ENGINES[name](MODELS[model], **options)
        state = other.load(sys.argv[2], *data()) if state is None else state
        kept = {"init_state": state, "progress_bar": False}
        return other.run(jax.random.key(0), STEPS, *data(), **kept)

    found = after(sharding=second)
    own = {str(leaf.sharding.spec) for leaf in jax.tree.leaves(found.params)}
    return {
        "same layout": distance(after(sharding=first).params, after(half.state).params),
        "other layout": distance(found.params, after().params),
        "split": any("p" in spec for spec in own),
    }


def of_chains(name: str, model: str, layout: str) -> dict[str, Any]:
    """Chains of a kernel of stochastic gradient MCMC, against one device's."""

    def draws(**options: Any) -> Any:
        kernel = getattr(nx, name)(MODELS[model], 1e-3, **options)
        mcmc = MCMC(
            kernel,
            num_warmup=3,
            num_samples=5,
            num_chains=P,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(0), *data())
        return mcmc.get_samples(group_by_chain=True)

    return {"draws": distance(draws(sharding=sharding(layout)), draws())}


def of_fit(name: str, model: str, layout: str) -> dict[str, Any]:
    """Draws of a fit, against one device's."""

    def fitted(**options: Any) -> Any:
        if model == "loader":
            search.MOST_ROWS, own = 20, {"batches": Batches(), "exact": False, **options}
            return nx.fit(jax.random.key(0), by_argument, progress_bar=False, **own)
        return nx.fit(jax.random.key(0), MODELS[model], *data(), progress_bar=False, **options)

    found, expected = fitted(sharding=sharding(layout)), fitted()
    return {
        "draws": distance(
            jax.tree.map(jnp.asarray, found.draws), jax.tree.map(jnp.asarray, expected.draws)
        ),
        "level": [found.verdict.level, expected.verdict.level],
    }


def of_step(name: str, model: str, layout: str) -> dict[str, Any]:
    """Numbers that a step's collectives move, over P D, with many coordinates."""
    columns = 400
    X = np.random.default_rng(0).normal(size=(N, columns)).astype(np.float32)

    def wide(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([columns]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    engine = ENGINES[name](wide, sharding=sharding(layout))
    state = engine.init(jax.random.key(0), X, X[:, 0], start="host")
    bound = engine._require_bound()
    text = bound.update.jitted.trace(state, bound.data).lower().compile().as_text()
    found = collectives(text, 4)
    return {"moved": sum(each.numbers for each in found) / (P * columns)}


def of_loader(name: str, model: str, layout: str) -> dict[str, Any]:
    """A run by batches of a loader, saved halfway, and what comes after it."""

    def figures(**options: Any) -> Any:
        if name == "SVGDVR":
            options["full_data"] = Batches(24)
        key, engine = jax.random.key(0), ENGINES[name](by_argument, **options)
        again = {"batches": Batches(), "progress_bar": False}
        half = engine.run(key, STEPS // 2, start="host", **again)
        engine.save(sys.argv[2], half.state)
        other = ENGINES[name](by_argument, **options)
        state = other.load(sys.argv[2], *next(iter(Batches())))
        found = other.run(key, STEPS, init_state=state, **again)
        through = engine.run(key, STEPS, init_state=half.state, **again)
        tree = {"params": found.params, "losses": jnp.asarray(found.losses)}
        if name == "ProximalScoreVI":
            tree["elbo"] = jnp.asarray(nx.elbo(other, found, batches=Batches(24)).value)
        return tree, distance(found.params, through.params)

    (found, same), (expected, _) = figures(sharding=sharding(layout)), figures()
    return {"same layout": same, **{k: distance(found[k], expected[k]) for k in found}}


def of_refusals(*_: str) -> dict[str, Any]:
    """Batches that do not split evenly."""
    engine = ENGINES["SVGD"](by_argument, sharding=sharding("d"))
    engine.run(jax.random.key(0), 2, batches=Batches(18), progress_bar=False)
    return {}


def of_judged(name: str, model: str, layout: str) -> dict[str, Any]:
    """An engine's run as users have it, with a judgement in its end."""
    with judging(True):
        return of_engine(name, model, layout)


KINDS = {
    "judged": of_judged,
    "loader": of_loader,
    "refused": of_refusals,
    "step": of_step,
    "engine": of_engine,
    "start": of_start,
    "after": of_after,
    "moved": of_moved,
    "chains": of_chains,
    "fit": of_fit,
}


def main(options: dict[str, Any]) -> None:
    """Run the cases; each is a kind, and what it is told."""
    jax.config.update("jax_enable_x64", options.get("x64", True))
    if "processes" in options:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"localhost:{options['port']}",
            options["processes"],
            options["process"],
            heartbeat_timeout_seconds=20,
            shutdown_timeout_seconds=20,
        )
    for kind, *case in options["cases"]:
        try:
            # A judgement of so few steps takes longer than they do.
            with judging(options.get("judged", False)):
                found = KINDS[kind](*case)
        except Exception as error:  # noqa: BLE001 - any is told to the test
            found = {"error": f"{type(error).__name__}: {error}"}
        if jax.process_index() == 0:
            sys.stdout.write(json.dumps({"case": [kind, *case], **found}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
