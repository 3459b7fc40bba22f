"""Training steps and fits of the study in NumPyro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from flax import nnx
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer import MCMC, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

import numpyro_ext as nx
from benchmarks.vision.numpyro_networks import load, network
from benchmarks.vision.study import PARTICLES, Plan

#: Images that are predicted at once.
CHUNK = 200


class Task:
    """A network, its images and what the methods share.

    Parameters
    ----------
    plan : Plan
    images, labels : array (n, channels, size, size) and (n,)
    weights : mapping of str to array, optional
        Given ones by torchvision's names or, as `weights` gives them, by flax's; else those at
        random.
    """

    def __init__(self, plan: Plan, images: Any, labels: Any, weights: Any = None) -> None:
        self.plan, self.key = plan, jax.random.key(plan.seed)
        size, channels = images.shape[-1], images.shape[1]
        self.images, self.labels = _channels_last(images), jnp.asarray(labels)
        self.module = network(plan.network, size, channels, plan.classes, nnx.Rngs(plan.seed))
        if weights is not None:
            if any(name.endswith("kernel") for name in weights):
                _set(self.module, weights)
            else:
                load(self.module, weights)
        self.module.eval()
        self.state: Any = None
        parameters = nnx.to_flat_state(nnx.state(self.module, nnx.Param))
        given = {_name(path): value[...] for path, value in parameters}
        # Given weights are an argument: constants of a program are held once more by it.
        self.data = self.images, self.labels, given
        self.begin = {f"net.{name}": value for name, value in given.items()}
        self.last = [name for name in self.begin if name.startswith(("net.fc.", "net.heads."))]

    def weights(self) -> dict[str, np.ndarray]:
        """The module's parameters and statistics."""
        state = nnx.to_flat_state(nnx.state(self.module, nnx.Any(nnx.Param, nnx.BatchStat)))
        return {_name(path): np.asarray(value[...]) for path, value in state}

    def program(self, temperature: float | None = None) -> Callable[..., None]:
        """Normal weights around the given ones; the likelihood to the power 1/temperature."""
        module, batch, scale = self.module, self.plan.batch, self.plan.scale

        def model(x: Any, y: Any = None, given: Any = None) -> None:
            net = nx.random_module("net", module, nx.priors.Pretrained(scale, given))
            with numpyro.plate("images", len(x), subsample_size=min(batch, len(x))):
                logits = net(numpyro.subsample(x, event_dim=3))
                observed = None if y is None else numpyro.subsample(y, event_dim=0)
                with handlers.scale(scale=1.0 / (temperature or 1.0)):
                    numpyro.sample("y", dist.Categorical(logits=logits), obs=observed)

        return model

    def rates(self, rate: float) -> dict[str, Any]:
        """Optimisers of biases, and of all other parameters."""
        fast = optax.adam(self.plan.bias_factor * rate)
        return {"*bias": fast, "*": optax.adam(rate)}

    # -- training the weights alone ------------------------------------------------------------

    def sgd(self, dropout: float = 0.0, train: bool = False) -> Callable[[], None]:
        """A step of stochastic gradient descent with momentum; ``train`` moves statistics too."""
        self.module.train() if train else self.module.eval()
        self._drop(dropout)
        plan = self.plan
        optimizer = nnx.Optimizer(self.module, optax.sgd(plan.sgd_rate, 0.9), wrt=nnx.Param)

        @nnx.jit
        def update(module: Any, optimizer: Any, x: Array, y: Array) -> None:
            def loss(module: Any) -> Array:
                return optax.softmax_cross_entropy_with_integer_labels(module(x), y).mean()

            optimizer.update(module, nnx.grad(loss)(module))

        generator = np.random.default_rng(plan.seed)

        def step() -> None:
            rows = generator.integers(0, len(self.images), plan.batch)
            update(self.module, optimizer, self.images[rows], self.labels[rows])
            jax.block_until_ready(nnx.state(self.module, nnx.Param))

        return step

    def _drop(self, share: float) -> None:
        layer = self.module.dropout
        layer.rate, layer.deterministic = share, share == 0.0

    def probabilities(self, images: Any, draws: int = 1) -> np.ndarray:
        """Means over passes of the module of the class probabilities."""

        @nnx.jit
        def of(module: Any, x: Array) -> Array:
            return jax.nn.softmax(module(x), -1)

        parts = _parts(images)
        each = [jnp.stack([of(self.module, part) for _ in range(draws)]).mean(0) for part in parts]
        return np.concatenate(each)

    # -- steps, to be timed --------------------------------------------------------------------

    def advi(self) -> Callable[[], None]:
        """A step of the host's SVI."""
        plan = self.plan
        self.guide = AutoDiagonalNormal(self.program(), init_scale=plan.width)
        # The host's own set-up and first run, operation by operation, take minutes.
        density = nx.flat_density(self.guide, self.key, self.data, drawn=False)
        begin = ravel_pytree([self.begin[name] for name in self.guide._init_locs])[0]
        params = density.to_host(density.initial_parameters()) | {"auto_loc": begin}
        svi = SVI(
            self.program(plan.temperature),
            self.guide,
            numpyro.optim.Adam(plan.rate),
            Trace_ELBO(),
        )
        state = jax.jit(svi.init)(self.key, *self.data, init_params=params)
        update = jax.jit(lambda state, data: svi.update(state, *data)[0], donate_argnums=0)
        self.parameters = lambda: svi.get_params(self.state)
        self.state = jax.tree.map(jnp.copy, state)

        def step() -> None:
            self.state = jax.block_until_ready(update(self.state, self.data))

        return step

    def proximal(self, one_rate: bool = True) -> Callable[[], None]:
        """A step of the proximal fit."""
        # One rate for all, so that long vectors are updated in place.
        self.engine = engine = self._engine(None if one_rate else self.rates(self.plan.rate))
        update = jax.jit(lambda state, data: engine.update(state, *data)[0], donate_argnums=0)
        self.state = engine.init(self.key, *self.data, start=self.begin)

        def step() -> None:
            self.state = jax.block_until_ready(update(self.state, self.data))

        return step

    def _engine(self, rates: dict[str, Any] | None) -> nx.ProximalScoreVI:
        plan = self.plan
        return nx.ProximalScoreVI(
            self.program(),
            AutoDiagonalNormal,
            solver=nx.GradientSteps(rates, num_inner_steps=2),
            initial_scale=plan.width,
            total_steps=plan.steps,
            likelihood_temperature=plan.temperature,
        )

    def sgld(self) -> Callable[[], None]:
        """A step of stochastic gradient Langevin dynamics."""
        kernel = self._kernel()
        self.state = kernel.init(self.key, 0, self.begin, self.data, {})
        update = jax.jit(lambda state, data: kernel.sample(state, data, {}), donate_argnums=0)

        def step() -> None:
            self.state = jax.block_until_ready(update(self.state, self.data))

        return step

    def _kernel(self) -> nx.SGLD:
        plan = self.plan
        rate = plan.sgd_rate * plan.temperature / len(self.images)
        return nx.SGLD(self.program(), rate, likelihood_temperature=plan.temperature)

    def mclmc(self) -> Callable[[], None]:
        """A step of microcanonical dynamics of a given length, on a batch as if it were all."""
        width = self.plan.width
        kernel = nx.MCLMC(self.program(), step_size=width, length=10.0 * width)
        x, y, given = self.data
        data = x[: self.plan.batch], y[: self.plan.batch], given
        self.state = kernel.init(self.key, 0, self.begin, data, {})
        update = jax.jit(lambda state, data: kernel.sample(state, data, {}), donate_argnums=0)

        def step() -> None:
            self.state = jax.block_until_ready(update(self.state, data))

        return step

    def svgd(self) -> Callable[[], None]:
        """A step of particles."""
        optim = numpyro.optim.Adam(self.plan.rate)
        engine = nx.SVGD(self.program(), optim, num_particles=PARTICLES)
        update = jax.jit(lambda state, data: engine.update(state, *data)[0], donate_argnums=0)
        self.state = engine.init(self.key, *self.data, start="host")

        def step() -> None:
            self.state = jax.block_until_ready(update(self.state, self.data))

        return step

    # -- fits ----------------------------------------------------------------------------------

    def fit(self, method: str, images: Any) -> np.ndarray:
        """Class probabilities (n, K) of test images by a method's fit."""
        plan = self.plan
        if method in ("SGD", "MC dropout"):
            step = self.sgd(plan.dropout if method == "MC dropout" else 0.0)
            for _ in range(plan.steps):
                step()
            return self.probabilities(images, plan.draws if method == "MC dropout" else 1)
        if method == "ADVI":
            step = self.advi()
            for _ in range(plan.steps):
                step()
            found = self.parameters()
            drawn = self.guide.sample_posterior(self.key, found, sample_shape=(plan.draws,))
            return self.predicted(drawn, images)
        if method == "SGLD":
            thinning = max(1, plan.steps // (2 * plan.draws))
            chain = MCMC(
                self._kernel(),
                num_warmup=plan.steps - thinning * plan.draws,
                num_samples=thinning * plan.draws,
                thinning=thinning,
                progress_bar=False,
            )
            chain.run(self.key, *self.data, init_params=self.begin)
            return self.predicted(chain.get_samples(), images)
        if method == "proximal":
            # Step by step: XLA takes three times as long for a convolution inside a loop.
            step = self.proximal(one_rate=False)
            for _ in range(plan.steps):
                step()
            drawn = self.engine.get_samples(self.state, num_samples=plan.draws)
            return self.predicted(drawn, images)
        laplace = nx.LaplaceGGN(
            self.program(),
            optax.adam(plan.rate),
            curvature=nx.GaussNewton("full", sites=self.last),
        )
        run = partial(laplace.run, start=self.begin, progress_bar=False)
        state = run(self.key, plan.steps, *self.data).state
        options = {"linearize": True, "num_samples": plan.draws, "state": state}
        return self.predicted(laplace, images, **options)

    def predicted(self, draws: Any, images: Any, **options: Any) -> np.ndarray:
        """Means over draws of the class probabilities, of some images at once."""
        parts = [
            nx.predictive_distribution(self.program(), draws, part, **options)["probabilities"]
            for part in _parts(images)
        ]
        return np.concatenate([part.mean("draw").values for part in parts])


def _channels_last(images: Any) -> Array:
    return jnp.asarray(np.moveaxis(images, 1, -1))


def _parts(images: Any) -> list[Array]:
    return [_channels_last(images[k : k + CHUNK]) for k in range(0, len(images), CHUNK)]


def _name(path: Any) -> str:
    return ".".join(map(str, path))


def _set(module: Any, weights: Mapping[str, Any]) -> None:
    state = nnx.to_flat_state(nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat)))
    for path, variable in state:
        variable.set_value(jnp.asarray(weights[_name(path)]))
    nnx.update(module, nnx.from_flat_state(state))


STEPS: Mapping[str, Callable[[Task], Callable[[], Any]]] = {
    "SGD": lambda task: task.sgd(),
    "MC dropout": lambda task: task.sgd(task.plan.dropout),
    "ADVI": Task.advi,
    "SGLD": Task.sgld,
    "proximal": Task.proximal,
    "MCLMC": Task.mclmc,
    "SVGD": Task.svgd,
}


def wait() -> None:
    """Return when the device has done what it was asked; steps wait for their own results."""


def peak_bytes() -> int | None:
    """Most bytes that this process held on an accelerator; None without one."""
    stats = jax.devices()[0].memory_stats()
    return None if not stats else int(stats["peak_bytes_in_use"])
