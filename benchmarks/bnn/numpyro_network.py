"""The networks and their runs in NumPyro."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array
from numpy.typing import NDArray
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoGuide, AutoNormal

import numpyro_ext as nx
from benchmarks.bnn.methods import (
    GUIDE_DRAWS,
    NEWTON_MOMENTUM,
    NEWTON_STEP,
    NOISE_PRIOR,
    NOISE_START,
    Floats,
    Method,
    Setting,
    engine_options,
)
from numpyro_ext.curvature import GaussNewton, ProgramCurvature


def program(setting: Setting, dropout: float = 0.0) -> Callable[[Array, Array], None]:
    """ReLU layers with weights of variance 2 / inputs; noise, if any, with a scale to learn.

    Hidden units are left out at random with probability ``dropout``, in every row others.
    """
    sizes = setting.sizes

    def model(x: Array, y: Array) -> None:
        layers = []
        for number, (inputs, units) in enumerate(pairwise(sizes), start=1):
            prior = dist.Normal(0.0, (2 / inputs) ** 0.5)
            w = numpyro.sample(f"w{number}", prior.expand([inputs, units]).to_event(2))
            b = numpyro.sample(f"b{number}", dist.Normal(0.0, 1.0).expand([units]).to_event(1))
            layers.append((w, b))
        if setting.task == "regression":
            noise = numpyro.sample("noise", dist.LogNormal(*NOISE_PRIOR))
        with numpyro.plate("rows", setting.rows, subsample_size=setting.batch) as rows:
            output = x[rows]
            for w, b in layers[:-1]:
                output = jax.nn.relu(output @ w + b)
                if dropout:
                    stay = jax.random.bernoulli(numpyro.prng_key(), 1.0 - dropout, output.shape)
                    output = jnp.where(stay, output / (1.0 - dropout), 0.0)
            output = (output @ layers[-1][0] + layers[-1][1])[..., 0]
            if setting.task == "regression":
                numpyro.sample("y", dist.Normal(output, noise), obs=y[rows])
            else:
                numpyro.sample("y", dist.Bernoulli(logits=output), obs=y[rows])

    return model


def start(site: dict[str, Any]) -> Array | None:
    """Weights from their prior, biases 0, noise of the response's own scale."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    if site["name"].startswith("w"):
        value: Array = site["fn"](rng_key=site["kwargs"]["rng_key"])
        return value
    return jnp.full(site["fn"].shape(), NOISE_START if site["name"] == "noise" else 0.0)


def kernel(name: str) -> Any:
    """A kernel by its name; None stands for the engine's own."""
    return {
        "default": None,
        "RBF": nx.RBF(),
        "RBF, curvature": nx.RBF("dimension", metric="curvature"),
        "IMQ, curvature": nx.IMQ("dimension", metric="curvature"),
        "Linear, curvature": nx.Linear("curvature"),
    }[name]


def adam(setting: Setting) -> optax.GradientTransformation:
    """Adam whose first step size lies in its state, so that runs with others share a program."""

    def build(learning_rate: Any) -> optax.GradientTransformation:
        falling = optax.scale_by_schedule(optax.cosine_decay_schedule(1.0, setting.steps))
        return optax.chain(optax.adam(learning_rate), falling)

    return optax.inject_hyperparams(build)(learning_rate=1e-3)


def with_candidate(state: Any, candidate: float) -> Any:
    """The state with another first step size of Adam, or another damping."""

    def chosen(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        found = name.endswith(("['learning_rate']", ".damping"))
        return jnp.full_like(leaf, candidate) if found else leaf

    return jax.tree_util.tree_map_with_path(chosen, state)


def release() -> None:
    """Let go of what was compiled, of which a system takes only so much in a long study."""
    jax.clear_caches()


class EngineTrainer:
    """Runs of an engine of the package; see :class:`~benchmarks.bnn.methods.Trainer`."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self._method = method
        options = engine_options(method, setting)
        if method.kernel != "default":
            options["kernel"] = kernel(method.kernel)
        falling = optax.cosine_decay_schedule(1.0, setting.steps)
        optim: optax.GradientTransformation = adam(setting)
        if method.family == "Newton":
            sizes = optax.cosine_decay_schedule(NEWTON_STEP, setting.steps)
            optim = optax.sgd(sizes, momentum=NEWTON_MOMENTUM, nesterov=True)
        elif method.family == "last layer":
            options["step_size"] = lambda step: 0.5 * falling(step)
        engine: Any = getattr(nx, method.engine)
        self.engine = engine(
            program(setting), optim, init_strategy=start, on_nonfinite="skip", **options
        )

    def start(self, x: Floats, y: NDArray[Any], seed: int, candidate: float) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        self.data = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        self._key = jax.random.key(seed)
        state = self.engine.init(self._key, *self.data)
        # Steps on the last layer have a damping of their own, which adapts.
        family = self._method.family
        self.state = state if family == "last layer" else with_candidate(state, candidate)
        if family == "last layer":
            algorithm = state.algorithm
            optimizer = with_candidate(algorithm.optimizer, candidate)
            self.state = state._replace(algorithm=algorithm._replace(optimizer=optimizer))

    def advance(self, steps: int) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        result = self.engine.run(
            self._key, steps, *self.data, init_state=self.state, progress_bar=False
        )
        self.state = jax.block_until_ready(result.state)

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        options: dict[str, Any] = {}
        if self._method.family == "Laplace":
            options = {"rng_key": jax.random.key(1), "num_samples": GUIDE_DRAWS}
        samples = self.engine.get_samples(self.state, **options)
        found = {name: np.asarray(value) for name, value in samples.items()}
        if self._method.linearised:
            mode = self.engine.mode(self.state)
            found |= {f"mode {name}": np.asarray(value)[None] for name, value in mode.items()}
        return found

    def said(self) -> dict[str, float]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        return {"skipped": float(self.state.skipped)}


class NewtonTrainer(EngineTrainer):
    """Runs of Newton steps; see :class:`~benchmarks.bnn.methods.NewtonTrainer`."""

    def curvature(self) -> tuple[dict[str, slice], Floats]:
        """See :class:`~benchmarks.bnn.methods.NewtonTrainer`."""
        target, data = self.engine.target, self.engine.data
        found = ProgramCurvature(target, data, GaussNewton("full"))
        at = jax.jit(lambda z: found.at(target, z, data, None, self._key).dense())
        return found.slices, np.asarray(at(self.engine.particles(self.state)), np.float64)


class VariationalTrainer:
    """Runs of NumPyro's own mean-field variational inference."""

    def __init__(self, method: Method, setting: Setting) -> None:
        model, self._guide = self._model_and_guide(setting)
        self._svi = SVI(model, self._guide, adam(setting), Trace_ELBO())

        def run(state: Any, count: Array, x: Array, y: Array) -> Any:
            return jax.lax.fori_loop(
                0, count, lambda _, state: self._svi.update(state, x, y)[0], state
            )

        self._run, self._sample = jax.jit(run), jax.jit(self._draws)

    def _model_and_guide(self, setting: Setting) -> tuple[Callable[..., None], AutoGuide]:
        model = program(setting)
        # Strategies are called without a site first, unless they are partial.
        return model, AutoNormal(model, init_loc_fn=partial(start), init_scale=0.01)

    def _draws(self, key: Array, params: dict[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = self._guide.sample_posterior(
            key, params, sample_shape=(GUIDE_DRAWS,)
        )
        return found

    def start(self, x: Floats, y: NDArray[Any], seed: int, candidate: float) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        self._data = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        state = self._svi.init(jax.random.key(seed), *self._data)
        self._state = with_candidate(state, candidate)

    def advance(self, steps: int) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        state = self._run(self._state, jnp.asarray(steps, jnp.int32), *self._data)
        self._state = jax.block_until_ready(state)

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        samples = self._sample(jax.random.key(1), self._svi.get_params(self._state))
        return {name: np.asarray(value) for name, value in samples.items()}

    def said(self) -> dict[str, float]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        return {}


def trainer(method: Method, setting: Setting) -> EngineTrainer | VariationalTrainer:
    """Runs of a method."""
    if method.family == "variational":
        return VariationalTrainer(method, setting)
    kind = NewtonTrainer if method.family == "Newton" else EngineTrainer
    return kind(method, setting)
