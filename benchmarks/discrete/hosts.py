"""What the parts need of either host: its words, potentials, fits, and samplers."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Found:
    """Figures of a run, its draws by site, and the values (S, ...) of a discrete site."""

    figures: dict[str, Any]
    draws: dict[str, np.ndarray]
    assigned: np.ndarray | None = None


def _as_numpy(draws: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in draws.items()}


class Host:
    """A host and the package for it, as programs and parts know them."""

    def __init__(self, name: str) -> None:
        self.name, self.is_pyro = name, name == "pyro"
        self.host = importlib.import_module(name)
        self.dist = importlib.import_module(f"{name}.distributions")
        self.handlers = importlib.import_module(
            "pyro.poutine" if self.is_pyro else f"{name}.handlers"
        )
        self.xp = importlib.import_module("torch" if self.is_pyro else "jax.numpy")
        self.public = importlib.import_module(f"{name}_ext")

    def array(self, value: Any) -> Any:
        """The framework's array, floats in its default precision."""
        array = np.asarray(value)
        if not self.is_pyro:
            return self.xp.asarray(array)
        dtype = self.xp.get_default_dtype() if array.dtype.kind == "f" else None
        return self.xp.as_tensor(array, dtype=dtype)

    def target(self, model: Any, args: Any) -> tuple[Any, Any]:
        """Our log density, and its data."""
        keys = () if self.is_pyro else (importlib.import_module("jax").random.key(0),)
        target = self.public.LogDensity(model, *keys, args)
        return target, target.bind(*args)

    def gradients(
        self, model: Any, args: Any, num: int, steps: int = 1
    ) -> dict[str, Callable[[], Any]]:
        """Gradients of ours at one position and at ``num``, and of the host's potential at one.

        With NumPyro they are ``steps`` one after another in a compiled loop, as engines and NUTS
        take them: a call from Python costs many times what a gradient of a small program does.
        """
        target, data = self.target(model, args)
        z = self.array(np.random.default_rng(0).uniform(-1.0, 1.0, (num, target.dim)))
        if self.is_pyro:
            return self._pyro_gradients(model, args, target, data, z)
        import jax
        from numpyro import handlers
        from numpyro.contrib.funsor import config_enumerate, enum
        from numpyro.infer.util import _guess_max_plate_nesting, potential_energy

        seeded = handlers.seed(model, 0)
        nesting = _guess_max_plate_nesting(handlers.trace(seeded).get_trace(*args))
        every = enum(config_enumerate(seeded), -nesting - 1)

        def potential(position: Any, args: Any) -> Any:
            return potential_energy(every, args, {}, target.layout.split(position), enum=True)

        @jax.jit
        def of_host(z: Any, args: Any) -> Any:
            step = jax.grad(potential)
            return jax.lax.fori_loop(0, steps, lambda _, z: z - 1e-6 * step(z, args), z)

        @jax.jit
        def ours(z: Any, data: Any) -> Any:
            def moved(_: Any, z: Any) -> Any:
                return z + 1e-6 * target.full_score(z, data).score

            return jax.lax.fori_loop(0, steps, moved, z)

        one, first = z[:1], z[0]
        return {
            "ours": lambda: jax.block_until_ready(ours(one, data)),
            "many": lambda: jax.block_until_ready(ours(z, data)),
            "host": lambda: jax.block_until_ready(of_host(first, args)),
        }

    @staticmethod
    def _pyro_gradients(model: Any, args: Any, target: Any, data: Any, z: Any) -> Any:
        import torch
        from pyro.infer.mcmc.util import initialize_model

        _, potential, _, _ = initialize_model(model, args)

        def of_host() -> Any:
            flat = z[0].clone().requires_grad_()
            return torch.autograd.grad(potential(target.layout.split(flat)), flat)

        return {
            "ours": lambda: target.full_score(z[:1], data),
            "many": lambda: target.full_score(z, data),
            "host": of_host,
        }

    def nuts(self, model: Any, args: Any, warm_up: int, draws: int) -> Found:
        """One chain of the host's NUTS, which sums discrete sites out as well."""
        started = time.perf_counter()
        if self.is_pyro:
            from pyro.infer import MCMC, NUTS

            self.host.set_rng_seed(0)
            sampler: Any = MCMC(
                NUTS(model), num_samples=draws, warmup_steps=warm_up, disable_progbar=True
            )
            sampler.run(*args)
        else:
            import jax
            from numpyro import infer
            from numpyro.contrib.funsor import config_enumerate

            sampler = infer.MCMC(
                infer.NUTS(config_enumerate(model)),
                num_warmup=warm_up,
                num_samples=draws,
                progress_bar=False,
            )
            sampler.run(jax.random.key(0), *args)
        figures = {"seconds": time.perf_counter() - started}
        return Found(figures, _as_numpy(sampler.get_samples()))

    def long_nuts(
        self, model: Any, args: Any, assigned: str | None, chains: int, draws: int
    ) -> Found:
        """Chains of NumPyro's NUTS, with the values of a discrete site by its ``Predictive``."""
        import jax
        from numpyro import infer
        from numpyro.contrib.funsor import config_enumerate

        sampler = infer.MCMC(
            infer.NUTS(config_enumerate(model), target_accept_prob=0.95),
            num_warmup=2000,
            num_samples=draws,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.key(1), *args)
        kept = sampler.get_samples()
        if assigned is None:
            return Found({}, _as_numpy(kept))
        predictive = infer.Predictive(model, kept, infer_discrete=True)
        values = predictive(jax.random.key(2), *args)[assigned]
        return Found({}, _as_numpy(kept), np.asarray(values))

    def fit(self, model: Any, args: Any, assigned: str, **settings: int) -> Found:
        """Our ``fit``, with the values of a discrete site; a step's number ends its name."""
        started = time.perf_counter()
        options: dict[str, Any] = {**settings, "progress_bar": False}
        if self.is_pyro:
            found = self.public.fit(model, *args, **options)
        else:
            import jax

            found = self.public.fit(jax.random.key(0), model, *args, **options)
        seconds = time.perf_counter() - started
        left_out = ("posterior_predictive", "log_likelihood", "observed_data", "sample_stats")
        data = self.public.to_arviz(
            found, *args, discrete="sample", **dict.fromkeys(left_out, False)
        )
        steps = re.compile(rf"{assigned}(_\d+)?")
        sites = [
            np.asarray(value).reshape(-1, *value.shape[2:])
            for name, value in data.posterior.items()
            if steps.fullmatch(str(name))
        ]
        values = np.concatenate([each.reshape(len(each), -1) for each in sites], 1)
        verdict = found.verdict
        figures = {
            "verdict": str(verdict.level),
            "evaluations": verdict.evaluations,
            "seconds": seconds,
        }
        return Found(figures, _as_numpy(found.draws), values)

    def engine(
        self, model: Any, args: Any, options: Any, steps: int
    ) -> tuple[dict[str, Any], float]:
        """Points of ``SVGD`` with eight particles in minibatches, and seconds with compiling."""
        started = time.perf_counter()
        if self.is_pyro:
            from pyro.optim import Adam

            engine = self.public.SVGD(model, Adam({"lr": 0.02}), num_particles=8, seed=0)
            engine.run(steps, *args, progress_bar=False, **options)
            found = engine.get_samples()
        else:
            import jax
            from numpyro.optim import Adam as OfJax

            engine = self.public.SVGD(model, OfJax(0.02), num_particles=8)
            result = engine.run(jax.random.key(0), steps, *args, progress_bar=False, **options)
            found = engine.get_samples(result.state)
        points = {name: np.asarray(value) for name, value in found.items()}
        return points, time.perf_counter() - started

    def svi(self, model: Any, args: Any, options: Any, steps: int) -> tuple[dict[str, Any], float]:
        """Points and seconds of the host's SVI with ``TraceEnum_ELBO`` and a normal guide."""
        started = time.perf_counter()
        if self.is_pyro:
            from pyro import poutine
            from pyro.infer import SVI, TraceEnum_ELBO, autoguide, config_enumerate
            from pyro.optim import Adam

            self.host.clear_param_store()
            self.host.set_rng_seed(0)
            guide: Any = autoguide.AutoNormal(poutine.block(model, hide=["z"]))
            svi: Any = SVI(
                config_enumerate(model),
                guide,
                Adam({"lr": 0.02}),
                TraceEnum_ELBO(max_plate_nesting=1),
            )
            for _ in range(steps):
                svi.step(*args, **options)
            found = guide.median(*args)
            points = {name: value.detach().numpy()[None] for name, value in found.items()}
            return points, time.perf_counter() - started
        import jax
        from numpyro import handlers
        from numpyro.contrib.funsor import config_enumerate as of_funsor
        from numpyro.infer import SVI as OfJax
        from numpyro.infer import TraceEnum_ELBO as Enumerated
        from numpyro.infer import autoguide as guides
        from numpyro.optim import Adam as OfOptim

        # The guide's own set-up wants a key for what is hidden.
        hidden = handlers.block(handlers.seed(model, 0), hide=["z"])
        guide = guides.AutoNormal(hidden)
        svi = OfJax(of_funsor(model), guide, OfOptim(0.02), Enumerated(max_plate_nesting=1))
        result = svi.run(jax.random.key(0), steps, *args, progress_bar=False, **options)
        found = guide.median(result.params)
        points = {name: np.asarray(value)[None] for name, value in found.items()}
        return points, time.perf_counter() - started


@cache
def host_of(name: str) -> Host:
    """The host of this name."""
    return Host(name)
