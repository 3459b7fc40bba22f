"""Time one score and one SVGD step against hand-written code, the hosts and a peer.

Six comparisons, each within one run, written to speed.jsonl, speed.md and speed.png:

- the score of 32 particles on an 8-50-1 network at 128 rows, in Pyro against torch.func by hand
  and against a Python loop over particles, in NumPyro against JAX by hand;
- the gradient alone of 100 particles on a logistic regression of a9a's shape at 128 rows, in Pyro
  by the traced graph against the derivative by torch.func and the one that is written out by hand;
- the cost of one SVGD step on a logistic regression of a9a's shape (32,561 rows, 123 features and a
  precision, 124 dimensions in all; 100 particles, 128 rows a step) in this project, both hosts and
  BlackJAX. The rows are those of $PPL_EXT_DATA/a9a.npz when that is there, and otherwise synthetic
  ones of the same shape;
- on the same regression, in each package: the step of a deep ensemble, which is the bare gradient
  and the optimizer, against those of SVGD with the field's kernel and with the default one, and of
  SVGD with variance reduction between two anchors.

Runs are not judged at their ends, which is no part of a step.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets, records
from benchmarks.arguments import count
from benchmarks.study import save, subplots
from benchmarks.timing import alternate, ratio
from ppl_ext.engines.judgement import unjudged

PARTICLES, ROWS, HIDDEN, FEATURES, FULL_ROWS = 32, 128, 50, 8, 1000
A9A_ROWS, A9A_FEATURES, A9A_PARTICLES, A9A_BATCH = 32_561, 123, 100, 128

# comparison -> (case, reference, bound, whether the ratio must be at most or at least the bound)
GOALS = {
    "score, Pyro": [
        ("graph", "torch.func by hand", 1.3, "at most"),
        ("loop over particles", "graph", 20.0, "at least"),
    ],
    "score, NumPyro": [("LogDensity", "JAX by hand", 1.1, "at most")],
    "gradient, logistic regression, Pyro": [
        ("pyro_ext", "torch, derivative by hand", 1.5, "at most"),
    ],
    "SVGD step, logistic regression": [
        ("NumPyro's SVGD", "numpyro_ext", 100.0, "at least"),
        ("Pyro's SVGD, univariate", "pyro_ext", 10.0, "at least"),
        ("BlackJAX", "numpyro_ext", 1.0, "at least"),
    ],
    "step by engine, Pyro": [
        ("SVGD, RBF", "gradient alone", 2.0, "at most"),
        ("SVGD, default kernel", "gradient alone", 2.0, "at most"),
        ("SVGDVR, RBF", "SVGD, RBF", 2.2, "at most"),
    ],
    "step by engine, NumPyro": [
        ("SVGD, RBF", "gradient alone", 3.0, "at most"),
        ("SVGD, default kernel", "gradient alone", 3.0, "at most"),
        ("SVGDVR, RBF", "SVGD, RBF", 2.2, "at most"),
    ],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks speed`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--rounds", type=count, default=7, help="rounds of each comparison")
    parser.add_argument("--only", nargs="+", choices=list(GOALS), help="some of the comparisons")
    parser.add_argument("--inductor", action="store_true", help="time Inductor as well (slow)")


def network_data() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows (ROWS, FEATURES) and responses (ROWS,) of the network comparison."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(1)).astype(np.float32)


def pyro_score_cases(inductor: bool) -> dict[str, Callable[[], object]]:
    """Ways of getting the score of 32 particles on the network with PyTorch."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.nn import PyroModule, PyroSample
    from torch import Tensor

    from pyro_ext.density import LogDensity

    class Network(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.first = PyroModule[torch.nn.Linear](FEATURES, HIDDEN)
            self.second = PyroModule[torch.nn.Linear](HIDDEN, 1)
            for layer in (self.first, self.second):
                for name, value in list(layer.named_parameters()):
                    prior = dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.dim())
                    setattr(layer, name, PyroSample(prior))

        def forward(self, x: Tensor, y: Tensor) -> None:
            scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
            out = self.second(torch.tanh(self.first(x))).squeeze(-1)
            with pyro.plate("rows", FULL_ROWS, subsample_size=len(x)):
                pyro.sample("y", dist.Normal(out, scale), obs=y)

    sizes = [1, HIDDEN * FEATURES, HIDDEN, HIDDEN, 1]

    def log_density(z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        log_scale, w1, b1, w2, b2 = z.split(sizes)
        hidden = torch.tanh(torch.nn.functional.linear(x, w1.view(HIDDEN, FEATURES), b1))
        out = torch.nn.functional.linear(hidden, w2.view(1, HIDDEN), b2).squeeze(-1)
        half_log_two_pi = 0.5 * np.log(2 * np.pi)
        prior = (-0.5 * z.square() - half_log_two_pi).sum()
        residual = (y - out) / log_scale.exp()
        rows = (-0.5 * residual.square() - log_scale - half_log_two_pi).sum()
        return prior + FULL_ROWS / len(x) * rows

    by_hand = torch.func.vmap(torch.func.grad(log_density), in_dims=(0, None, None))
    x, y = (torch.from_numpy(array) for array in network_data())
    network = Network()
    modes = ["graph", "handlers", "loop", *(["inductor"] if inductor else [])]
    targets = {mode: LogDensity(network, (x, y), evaluation=mode) for mode in modes}
    data = targets["graph"].bind(x, y)
    z = 0.3 * torch.randn(
        PARTICLES, targets["graph"].dim, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(
        targets["graph"].score(z, data).score, by_hand(z, x, y), rtol=1e-3, atol=1e-2
    )
    names = {"handlers": "vmap through handlers", "loop": "loop over particles"}
    cases: dict[str, Callable[[], object]] = {
        "torch.func by hand": lambda: by_hand(z, x, y),
        **{
            names.get(mode, mode): partial(target.score, z, data)
            for mode, target in targets.items()
        },
    }
    return cases


def numpyro_score_cases() -> dict[str, Callable[[], object]]:
    """Ways of getting the score of 32 particles on the network with JAX."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from flax import nnx
    from jax import Array
    from numpyro.contrib.module import random_nnx_module

    from numpyro_ext.density import LogDensity

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
            self.second = nnx.Linear(HIDDEN, 1, rngs=rngs)

        def __call__(self, x: Array) -> Array:
            return self.second(jnp.tanh(self.first(x)))[:, 0]

    module = Network(nnx.Rngs(0))

    def model(x: Array, y: Array) -> None:
        network = random_nnx_module("network", module, dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        out = network(x)
        with numpyro.plate("rows", FULL_ROWS, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Normal(out, scale), obs=y)

    x, y = (jnp.asarray(array) for array in network_data())
    target = LogDensity(model, jax.random.key(0), (x, y))
    slices, shapes = target.layout.slices, target.layout.shapes
    half_log_two_pi = 0.5 * float(np.log(2 * np.pi))

    def log_density(z: Array, x: Array, y: Array) -> Array:
        part = {
            name: z[where].reshape(shape)
            for (name, where), shape in zip(slices.items(), _shapes(shapes), strict=True)
        }
        hidden = jnp.tanh(
            x @ part["network/first.kernel"].reshape(FEATURES, HIDDEN)
            + part["network/first.bias"].reshape(HIDDEN)
        )
        out = hidden @ part["network/second.kernel"].reshape(HIDDEN, 1)
        out = (out + part["network/second.bias"].reshape(1))[:, 0]
        log_scale = part["scale"].reshape(())
        prior = (-0.5 * z**2 - half_log_two_pi).sum()
        residual = (y - out) / jnp.exp(log_scale)
        rows = (-0.5 * residual**2 - log_scale - half_log_two_pi).sum()
        return prior + FULL_ROWS / x.shape[0] * rows

    by_hand = jax.jit(jax.vmap(jax.grad(log_density), in_axes=(0, None, None)))
    ours = jax.jit(lambda z, data: target.score(z, data).score)
    data = target.bind(x, y)
    z = 0.3 * jax.random.normal(jax.random.key(1), (PARTICLES, target.dim))
    np.testing.assert_allclose(ours(z, data), by_hand(z, x, y), rtol=1e-3, atol=1e-2)
    return {
        "JAX by hand": lambda: by_hand(z, x, y).block_until_ready(),
        "LogDensity": lambda: ours(z, data).block_until_ready(),
    }


def _shapes(shapes: Any) -> list[tuple[int, ...]]:
    return list(shapes.values()) if isinstance(shapes, dict) else list(shapes)


def a9a_data() -> tuple[NDArray[np.float32], NDArray[np.float32], str]:
    """Rows (32561, 123), labels 0 or 1, and where they come from."""
    if datasets.has_external("a9a"):
        split = datasets.external("a9a").split(0)
        return split.x_train.astype(np.float32), split.y_train.astype(np.float32), "a9a"
    generator = np.random.default_rng(0)
    # a9a has about 14 ones in each row of 123 binary features.
    x = (generator.random((A9A_ROWS, A9A_FEATURES)) < 14 / A9A_FEATURES).astype(np.float32)
    logits = x @ generator.normal(size=A9A_FEATURES)
    y = (generator.random(A9A_ROWS) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return x, y, "synthetic rows of a9a's shape"


STEPS = 20
#: Beyond the steps of any run here: the steps between two anchors are timed.
NO_ANCHOR = 1_000_000


def _pyro_logistic() -> Callable[..., None]:
    """The regression with a Gamma hyperprior as a Pyro program."""
    import pyro
    import pyro.distributions as dist
    import torch
    from torch import Tensor

    def model(x: Tensor, y: Tensor) -> None:
        precision = pyro.sample("precision", dist.Gamma(1.0, 0.01))
        scale = precision.rsqrt().unsqueeze(-1)
        prior = dist.Normal(torch.zeros(x.shape[1]), scale)
        weights = pyro.sample("weights", prior.to_event(1))
        with pyro.plate("rows", len(x), subsample_size=A9A_BATCH, dim=-1) as rows:
            logits = torch.nn.functional.linear(weights, x[rows])
            if logits.dim() > 2:  # Pyro's SVGD puts its particles in a batch dimension
                logits = logits.squeeze(-2)
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[rows])

    return model


def pyro_gradient_cases(
    x: NDArray[np.float32], y: NDArray[np.float32]
) -> dict[str, Callable[[], object]]:
    """Ways of getting gradients and log densities of the regression with PyTorch.

    By hand the derivatives are written out, for all particles at once; columns of a transposed copy
    of the data are the other way to have the rows of a minibatch.
    """
    import torch
    from torch import Tensor
    from torch.nn.functional import logsigmoid, softplus

    from pyro_ext.density import LogDensity

    data, transposed = (torch.from_numpy(x), torch.from_numpy(y)), torch.from_numpy(x.T.copy())
    target = LogDensity(_pyro_logistic(), data)
    bound = target.bind(*data)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(x), generator=generator)[:A9A_BATCH]
    z = 0.3 * torch.randn(A9A_PARTICLES, target.dim, generator=generator)
    scale, half = len(x) / A9A_BATCH, 0.5 * x.shape[1]
    constant = float(np.log(0.01) - half * np.log(2.0 * np.pi))

    def by_hand(features: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        labels, log_precision, weights = data[1][rows], z[:, 0], z[:, 1:]
        precision = log_precision.exp()
        logits = weights @ columns
        residual = (labels - torch.sigmoid(logits)) * scale
        energy = 0.5 * precision * weights.square().sum(1)
        of_weights = residual @ features - precision[:, None] * weights
        of_precision = 1.0 + half - 0.01 * precision - energy
        log_likelihood = scale * (labels * logits - softplus(logits)).sum(1)
        log_prior = constant + (1.0 + half) * log_precision - 0.01 * precision - energy
        return torch.cat([of_precision[:, None], of_weights], 1), log_prior, log_likelihood

    def of_rows() -> tuple[Tensor, Tensor, Tensor]:
        features = data[0][rows]
        return by_hand(features, features.T)

    def of_columns() -> tuple[Tensor, Tensor, Tensor]:
        columns = transposed[:, rows]
        return by_hand(columns.T, columns)

    def log_density(z: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
        log_precision, weights = z[0], z[1:]
        precision = log_precision.exp()
        logits = features @ weights
        # log p = (y - 1) x + log(sigmoid(x)), as torch's loss has it.
        log_likelihood = scale * ((labels - 1.0) * logits + logsigmoid(logits)).sum()
        log_prior = constant + (1.0 + half) * log_precision
        log_prior = log_prior - precision * (0.01 + 0.5 * weights.square().sum())
        return log_prior + log_likelihood, (log_prior, log_likelihood)

    derived = torch.func.vmap(torch.func.grad(log_density, has_aux=True), (0, None, None))
    cases: dict[str, Callable[[], Any]] = {
        "torch, derivative by hand": of_rows,
        "torch, by hand on columns": of_columns,
        "torch.func": lambda: derived(z, data[0][rows], data[1][rows]),
        "pyro_ext": lambda: target.score(z, bound, {"rows": rows}),
    }
    expected = of_rows()
    for found in (of_columns(), cases["pyro_ext"]()):
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(cases["torch.func"]()[0], expected[0], rtol=1e-4, atol=1e-2)
    return cases


def pyro_engine_cases(
    x: NDArray[np.float32], y: NDArray[np.float32]
) -> dict[str, Callable[[], object]]:
    """``STEPS`` steps of each particle engine of ``pyro_ext``."""
    import torch
    from pyro.optim import Adam

    import pyro_ext as px

    data = torch.from_numpy(x), torch.from_numpy(y)
    model, adam, field = _pyro_logistic(), Adam({"lr": 0.01}), px.RBF()
    num = A9A_PARTICLES
    engines = {
        "gradient alone": px.DeepEnsemble(model, adam, num, seed=0),
        "SVGD, RBF": px.SVGD(model, adam, field, num, seed=0),
        "SVGD, default kernel": px.SVGD(model, adam, None, num, seed=0),
        "SVGDVR, RBF": px.SVGDVR(model, adam, field, num, anchor_every=NO_ANCHOR, seed=0),
    }

    def case(engine: Any) -> Callable[[], object]:
        return lambda: engine.run(STEPS, *data, progress_bar=False)

    return {name: case(engine) for name, engine in engines.items()}


def pyro_svgd_cases(
    x: NDArray[np.float32], y: NDArray[np.float32]
) -> dict[str, Callable[[], object]]:
    """``STEPS`` SVGD steps with PyTorch: ours, Pyro's in both modes."""
    import pyro
    import torch
    from pyro.infer import SVGD as HostSVGD
    from pyro.infer import RBFSteinKernel
    from pyro.optim import Adam

    import pyro_ext as px

    features, labels = torch.from_numpy(x), torch.from_numpy(y)
    model = _pyro_logistic()
    ours = px.SVGD(model, Adam({"lr": 0.01}), px.RBF(), num_particles=A9A_PARTICLES, seed=0)

    def host(mode: str) -> Callable[[], object]:
        pyro.clear_param_store()
        engine = HostSVGD(model, RBFSteinKernel(), Adam({"lr": 0.01}), A9A_PARTICLES, 1, mode=mode)

        def steps() -> None:
            for _ in range(STEPS):
                engine.step(features, labels)

        return steps

    # Two of Pyro's SVGD objects cannot live side by side, so only one of its modes is timed.
    return {
        "pyro_ext": lambda: ours.run(STEPS, features, labels, progress_bar=False),
        "Pyro's SVGD, univariate": host("univariate"),
    }


def _numpyro_logistic(num_rows: int, num_features: int) -> Callable[..., None]:
    """The regression with a Gamma hyperprior as a NumPyro program."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from jax import Array

    def model(x: Array, y: Array) -> None:
        precision = numpyro.sample("precision", dist.Gamma(1.0, 0.01))
        prior = dist.Normal(jnp.zeros(num_features), precision**-0.5)
        weights = numpyro.sample("weights", prior.to_event(1))
        with numpyro.plate("rows", num_rows, subsample_size=A9A_BATCH) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])

    return model


def numpyro_engine_cases(
    x: NDArray[np.float32], y: NDArray[np.float32]
) -> dict[str, Callable[[], object]]:
    """``STEPS`` steps of each particle engine of ``numpyro_ext``."""
    import jax
    import jax.numpy as jnp
    from numpyro.optim import Adam

    import numpyro_ext as nx

    data = jnp.asarray(x), jnp.asarray(y)
    model, adam, field = _numpyro_logistic(*x.shape), Adam(0.01), nx.RBF()
    num, key = A9A_PARTICLES, jax.random.key(0)
    engines = {
        "gradient alone": nx.DeepEnsemble(model, adam, num),
        "SVGD, RBF": nx.SVGD(model, adam, field, num),
        "SVGD, default kernel": nx.SVGD(model, adam, None, num),
        "SVGDVR, RBF": nx.SVGDVR(model, adam, field, num, anchor_every=NO_ANCHOR),
    }

    def case(engine: Any) -> Callable[[], object]:
        state = engine.run(key, STEPS, *data, progress_bar=False).state

        def steps() -> object:
            result = engine.run(key, STEPS, *data, progress_bar=False, init_state=state)
            return jax.block_until_ready(result.losses)

        return steps

    return {name: case(engine) for name, engine in engines.items()}


def numpyro_svgd_cases(
    x: NDArray[np.float32], y: NDArray[np.float32]
) -> dict[str, Callable[[], object]]:
    """``STEPS`` SVGD steps with JAX: ours, NumPyro's, BlackJAX's."""
    import blackjax
    import jax
    import jax.numpy as jnp
    import numpyro.distributions as dist
    import optax
    from jax import Array
    from numpyro.contrib.einstein import SVGD as HostSVGD
    from numpyro.contrib.einstein import RBFKernel
    from numpyro.optim import Adam

    import numpyro_ext as nx

    features, labels = jnp.asarray(x), jnp.asarray(y)
    num_rows, num_features = x.shape

    model = _numpyro_logistic(num_rows, num_features)
    ours = nx.SVGD(model, Adam(0.01), nx.RBF(), num_particles=A9A_PARTICLES)
    state = ours.run(jax.random.key(0), STEPS, features, labels, progress_bar=False).state

    def run_ours() -> object:
        result = ours.run(
            jax.random.key(0), STEPS, features, labels, progress_bar=False, init_state=state
        )
        return jax.block_until_ready(result.losses)

    engine = HostSVGD(model, Adam(0.01), RBFKernel(), num_stein_particles=A9A_PARTICLES)
    host_state = engine.init(jax.random.key(0), features, labels)

    @jax.jit
    def host_step(state: Any) -> Any:
        return engine.update(state, features, labels)[0]

    def run_host() -> object:
        return jax.block_until_ready(host_step(host_state))

    def log_density(z: Array, rows: Array) -> Array:
        log_precision, weights = z[0], z[1:]
        prior = dist.Gamma(1.0, 0.01).log_prob(jnp.exp(log_precision)) + log_precision
        prior = prior + dist.Normal(0.0, jnp.exp(-0.5 * log_precision)).log_prob(weights).sum()
        likelihood = dist.Bernoulli(logits=features[rows] @ weights).log_prob(labels[rows])
        return prior + num_rows / A9A_BATCH * likelihood.sum()

    peer = blackjax.svgd(jax.grad(log_density), optax.adam(0.01))
    start = jax.random.normal(jax.random.key(1), (A9A_PARTICLES, num_features + 1))
    peer_state = peer.init(start, {"length_scale": 1.0})

    @jax.jit
    def peer_steps(state: Any, key: Array) -> Any:
        def one(state: Any, key: Array) -> tuple[Any, None]:
            rows = jax.random.randint(key, (A9A_BATCH,), 0, num_rows)
            return peer.step(state, rows=rows), None

        return jax.lax.scan(one, state, jax.random.split(key, STEPS))[0]

    def run_peer() -> object:
        return jax.block_until_ready(peer_steps(peer_state, jax.random.key(2)))

    return {"numpyro_ext": run_ours, "BlackJAX": run_peer, "NumPyro's SVGD": run_host}


#: Steps that one call of a case takes, where that is not ``STEPS``: NumPyro's is too slow for it.
STEPS_PER_CALL = {"NumPyro's SVGD": 1}


def main(arguments: argparse.Namespace) -> int:
    """Run the comparisons and write speed.jsonl, speed.md and speed.png."""
    import torch

    torch.set_num_threads(1)
    out: Path = arguments.out
    x, y, source = a9a_data()
    print(f"Logistic regression on {source}, {x.shape[0]:,} x {x.shape[1]}")

    def svgd_cases() -> dict[str, Callable[[], object]]:
        return {**pyro_svgd_cases(x, y), **numpyro_svgd_cases(x, y)}

    comparisons: dict[str, tuple[Callable[[], dict[str, Callable[[], object]]], dict[str, int]]] = {
        "score, Pyro": (lambda: pyro_score_cases(arguments.inductor), {}),
        "score, NumPyro": (numpyro_score_cases, {}),
        "gradient, logistic regression, Pyro": (lambda: pyro_gradient_cases(x, y), {}),
        "SVGD step, logistic regression": (svgd_cases, STEPS_PER_CALL),
        "step by engine, Pyro": (lambda: pyro_engine_cases(x, y), {}),
        "step by engine, NumPyro": (lambda: numpyro_engine_cases(x, y), {}),
    }
    for name in set(comparisons) - set(arguments.only or comparisons):
        del comparisons[name]
    rows: list[dict[str, Any]] = []
    goals: list[dict[str, Any]] = []
    for comparison, (make_cases, steps) in comparisons.items():
        one_call = comparison.startswith(("score", "gradient"))
        per_call = {} if one_call else steps
        record = records.Record("speed", comparison, settings={"rounds": arguments.rounds})
        record.settings["data"] = "synthetic" if comparison.startswith("score") else source
        with records.recorded_run(out / "speed.jsonl", record), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A run's end, where its answer is judged, is not a step.
            with unjudged():
                times = alternate(make_cases(), rounds=arguments.rounds)
            default = 1 if one_call else STEPS
            times = {case: t / per_call.get(case, default) for case, t in times.items()}
            for case, seconds in times.items():
                milliseconds = 1e3 * float(np.median(seconds))
                record.figures[case] = {"milliseconds": milliseconds, "rounds": 1e3 * seconds}
                rows.append({"comparison": comparison, "case": case, "ms": milliseconds})
            for case, reference, bound, kind in GOALS[comparison]:
                found = ratio(times, case, reference)
                met = found <= bound if kind == "at most" else found >= bound
                record.figures[f"{case} / {reference}"] = found
                goals.append(
                    {
                        "ratio": f"{case} / {reference}",
                        "found": found,
                        "goal": f"{kind} {bound:g}",
                        "met": met,
                    }
                )
    report = (
        "# Speed\n\nMade by `python -m benchmarks speed`. Medians over rounds in which the cases "
        "take turns; ratios are taken within rounds.\n\n"
        + records.markdown_table(rows)
        + "\n"
        + records.markdown_table(goals)
    )
    records.write_text(out / "speed.md", report)
    print(report)
    _plot(rows, out / "speed.png")
    return 0


def page_table(runs: list[records.Record]) -> str:
    """The table on the page: the gradient alone."""
    figures = {run.method: run.figures for run in runs}["gradient, logistic regression, Pyro"]
    times = {case: found["rounds"] for case, found in figures.items() if isinstance(found, dict)}
    times = {case: np.asarray(found) for case, found in times.items()}
    rows = []
    for case, found in times.items():
        row: dict[str, Any] = {"gradient and log density": case, "ms": float(np.median(found))}
        row["times by hand"] = ratio(times, case, "torch, derivative by hand")
        rows.append(row)
    return records.markdown_table(rows)


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    comparisons = list(dict.fromkeys(row["comparison"] for row in rows))
    figure, axes = subplots(len(comparisons), 1, figsize=(7, 2 * len(comparisons)))
    for axis, comparison in zip(np.atleast_1d(axes), comparisons, strict=True):
        chosen = [row for row in rows if row["comparison"] == comparison]
        bars = axis.barh([row["case"] for row in chosen], [row["ms"] for row in chosen])
        axis.bar_label(bars, [f" {row['ms']:.3g}" for row in chosen])
        axis.set(xscale="log", xlabel="milliseconds", title=comparison)
        axis.margins(x=0.15)
        axis.invert_yaxis()
    save(figure, path)
