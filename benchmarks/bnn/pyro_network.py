"""The networks and their runs in Pyro."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoGuide, AutoNormal
from pyro.optim import CosineAnnealingLR
from torch import Tensor

import pyro_ext as px
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
from pyro_ext.curvature import GaussNewton, ProgramCurvature


def program(setting: Setting, dropout: float = 0.0) -> Callable[[Tensor, Tensor], None]:
    """ReLU layers with weights of variance 2 / inputs; noise, if any, with a scale to learn.

    Hidden units are left out at random with probability ``dropout``, in every row others.
    """
    sizes = setting.sizes

    def model(x: Tensor, y: Tensor) -> None:
        layers = []
        for number, (inputs, units) in enumerate(pairwise(sizes), start=1):
            prior = dist.Normal(torch.zeros(inputs, units), (2 / inputs) ** 0.5)
            w = pyro.sample(f"w{number}", prior.to_event(2))
            b = pyro.sample(f"b{number}", dist.Normal(torch.zeros(units), 1.0).to_event(1))
            layers.append((w, b))
        if setting.task == "regression":
            noise = pyro.sample("noise", dist.LogNormal(*map(torch.tensor, NOISE_PRIOR)))
        with pyro.plate("rows", setting.rows, subsample_size=setting.batch) as rows:
            output = x[rows]
            for w, b in layers[:-1]:
                output = torch.relu(output @ w + b)
                if dropout:
                    output = torch.nn.functional.dropout(output, dropout)
            output = (output @ layers[-1][0] + layers[-1][1])[..., 0]
            if setting.task == "regression":
                pyro.sample("y", dist.Normal(output, noise), obs=y[rows])
            else:
                pyro.sample("y", dist.Bernoulli(logits=output), obs=y[rows])

    return model


def start(site: dict[str, Any]) -> Tensor:
    """Weights from their prior, biases 0, noise of the response's own scale."""
    if site["name"].startswith("w"):
        value: Tensor = site["fn"].sample()
        return value
    return torch.full(site["fn"].shape(), NOISE_START if site["name"] == "noise" else 0.0)


def kernel(name: str) -> Any:
    """A kernel by its name; None stands for the engine's own."""
    return {
        "default": None,
        "RBF": px.RBF(),
        "RBF, curvature": px.RBF("dimension", metric="curvature"),
        "IMQ, curvature": px.IMQ("dimension", metric="curvature"),
        "Linear, curvature": px.Linear("curvature"),
    }[name]


def falling(optimizer: Any, settings: dict[str, Any], steps: int) -> Any:
    """An optimizer whose step size falls to 0 along a cosine."""
    return CosineAnnealingLR({"optimizer": optimizer, "optim_args": settings, "T_max": steps})


def release() -> None:
    """Nothing: what was compiled goes with its engine."""


class EngineTrainer:
    """Runs of an engine of the package; see :class:`~benchmarks.bnn.methods.Trainer`."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self._method, self._setting = method, setting

    def _engine(self, seed: int, candidate: float) -> Any:
        method, setting = self._method, self._setting
        options = engine_options(method, setting)
        if method.kernel != "default":
            options["kernel"] = kernel(method.kernel)
        optim = falling(torch.optim.Adam, {"lr": candidate}, setting.steps)
        if method.family == "Newton":
            options["damping"] = replace(options["damping"], damping=candidate)
            settings = {"lr": NEWTON_STEP, "momentum": NEWTON_MOMENTUM, "nesterov": True}
            optim = falling(torch.optim.SGD, settings, setting.steps)
        elif method.family == "last layer":
            shape = torch.linspace(0.0, torch.pi, setting.steps + 1).cos().add(1.0).mul(0.25)
            options["step_size"] = lambda step: float(shape[min(int(step), setting.steps)])
        engine: Any = getattr(px, method.engine)
        return engine(
            program(setting),
            optim,
            init_strategy=start,
            on_nonfinite="skip",
            seed=seed,
            **options,
        )

    def start(self, x: Floats, y: NDArray[Any], seed: int, candidate: float) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        self.data = (
            torch.tensor(x, dtype=torch.float32),
            torch.tensor(y, dtype=torch.float32),
        )
        self.engine = self._engine(seed, candidate)
        self.engine.setup(*self.data)

    def advance(self, steps: int) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        self.engine.run(steps, *self.data, progress_bar=False)

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        number = GUIDE_DRAWS if self._method.family == "Laplace" else None
        samples = self.engine.get_samples(number)
        found = {name: value.numpy() for name, value in samples.items()}
        if self._method.linearised:
            mode = self.engine.mode()
            found |= {f"mode {name}": value.numpy()[None] for name, value in mode.items()}
        return found

    def said(self) -> dict[str, float]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        return {"skipped": float(self.engine.num_skipped)}


class NewtonTrainer(EngineTrainer):
    """Runs of Newton steps; see :class:`~benchmarks.bnn.methods.NewtonTrainer`."""

    def curvature(self) -> tuple[dict[str, slice], Floats]:
        """See :class:`~benchmarks.bnn.methods.NewtonTrainer`."""
        target, data = self.engine.target, self.engine.data
        found = ProgramCurvature(target, data, GaussNewton("full"))
        at = found.at(target, self.engine.particles, data, None)
        return found.slices, at.dense().double().numpy()


class VariationalTrainer:
    """Runs of Pyro's own mean-field variational inference."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self._setting = setting

    def start(self, x: Floats, y: NDArray[Any], seed: int, candidate: float) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        self._data = (
            torch.tensor(x, dtype=torch.float32),
            torch.tensor(y, dtype=torch.float32),
        )
        model, self._guide = self._model_and_guide(self._setting)
        self._optim = falling(torch.optim.Adam, {"lr": candidate}, self._setting.steps)
        self._svi = SVI(model, self._guide, self._optim, Trace_ELBO())

    def _model_and_guide(self, setting: Setting) -> tuple[Callable[..., None], AutoGuide]:
        model = program(setting)
        return model, AutoNormal(model, init_loc_fn=start, init_scale=0.01)

    def advance(self, steps: int) -> None:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        for _ in range(steps):
            self._svi.step(*self._data)
            self._optim.step()

    def draws(self) -> dict[str, Floats]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        predictive = Predictive(self._guide, num_samples=GUIDE_DRAWS)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            found = predictive(*self._data)
        sizes = len(self._setting.sizes)
        shapes = {f"w{layer}": 3 for layer in range(1, sizes)}
        shapes |= {f"b{layer}": 2 for layer in range(1, sizes)}
        shapes |= dict.fromkeys(self._setting.with_noise, 1)
        # Predictive keeps an axis for the plate in some hosts' versions.
        return {
            name: found[name]
            .reshape(GUIDE_DRAWS, *found[name].shape[found[name].dim() - n + 1 :])
            .numpy()
            for name, n in shapes.items()
        }

    def said(self) -> dict[str, float]:
        """See :class:`~benchmarks.bnn.methods.Trainer`."""
        return {}


def trainer(method: Method, setting: Setting) -> EngineTrainer | VariationalTrainer:
    """Runs of a method."""
    if method.family == "variational":
        return VariationalTrainer(method, setting)
    kind = NewtonTrainer if method.family == "Newton" else EngineTrainer
    return kind(method, setting)
