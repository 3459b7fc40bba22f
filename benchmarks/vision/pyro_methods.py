"""Training steps and fits of the study in Pyro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pyro_ext as px
from benchmarks.vision.pyro_networks import network
from benchmarks.vision.study import PARTICLES, Plan

#: Images that are predicted at once.
CHUNK = 200
#: Where networks and images are.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Task:
    """A network, its images and what the methods share.

    Parameters
    ----------
    plan : Plan
    images, labels : array (n, channels, size, size) and (n,)
    weights : mapping of str to array, optional
        Given ones by torchvision's names; else those at random.
    """

    def __init__(self, plan: Plan, images: Any, labels: Any, weights: Any = None) -> None:
        torch.manual_seed(plan.seed)
        pyro.set_rng_seed(plan.seed)
        pyro.clear_param_store()
        self.plan = plan
        self.images, self.labels = (torch.from_numpy(each).to(DEVICE) for each in (images, labels))
        module = network(plan.network, images.shape[-1], images.shape[1], plan.classes)
        self.module = module.to(DEVICE)
        if weights is not None:
            values = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
            self.module.load_state_dict(values)
        self.module.eval()
        self.data = self.images, self.labels
        self.begin = {f"net.{k}": v.detach() for k, v in self.module.named_parameters()}
        self.last = [name for name in self.begin if name.startswith(("net.fc.", "net.heads."))]

    def weights(self) -> dict[str, np.ndarray]:
        """The module's parameters and statistics."""
        return {name: value.cpu().numpy() for name, value in self.module.state_dict().items()}

    def program(self, temperature: float | None = None) -> Callable[..., None]:
        """Normal weights around the given ones; the likelihood to the power 1/temperature."""
        module, batch, scale = self.module, self.plan.batch, self.plan.scale

        def model(x: Tensor, y: Tensor | None = None) -> None:
            net = px.random_module("net", module, px.priors.Pretrained(scale))
            with pyro.plate("images", len(x), subsample_size=min(batch, len(x))) as rows:
                logits, observed = net(x[rows]), None if y is None else y[rows]
                with poutine.scale(scale=1.0 / (temperature or 1.0)):
                    pyro.sample("y", dist.Categorical(logits=logits), obs=observed)

        return model

    def rates(self, rate: float) -> dict[str, Any]:
        """Optimisers of biases, and of all other parameters."""
        fast = pyro.optim.Adam({"lr": self.plan.bias_factor * rate})
        return {"*bias": fast, "*": pyro.optim.Adam({"lr": rate})}

    # -- training the weights alone ------------------------------------------------------------

    def sgd(self, dropout: float = 0.0, train: bool = False) -> Callable[[], None]:
        """A step of stochastic gradient descent with momentum; ``train`` moves statistics too."""
        self.module.train(train)
        self._drop(dropout)
        plan = self.plan
        optimizer = torch.optim.SGD(self.module.parameters(), plan.sgd_rate, momentum=0.9)

        def step() -> None:
            rows = torch.randint(len(self.images), (plan.batch,), device=DEVICE)
            optimizer.zero_grad()
            cross_entropy(self.module(self.images[rows]), self.labels[rows]).backward()
            optimizer.step()

        return step

    def _drop(self, share: float) -> None:
        layer = self.module.dropout
        assert isinstance(layer, nn.Dropout)
        layer.p = share
        layer.train(share > 0.0)

    def probabilities(self, images: Any, draws: int = 1) -> np.ndarray:
        """Means over passes of the module of the class probabilities."""
        with torch.no_grad():
            parts = torch.from_numpy(images).to(DEVICE).split(CHUNK)
            found = [
                torch.stack([self.module(part).softmax(-1) for _ in range(draws)]).mean(0)
                for part in parts
            ]
        return torch.cat(found).cpu().numpy()

    # -- steps, to be timed --------------------------------------------------------------------

    def advi(self) -> Callable[[], Any]:
        """A step of the host's SVI."""
        guide = AutoDiagonalNormal(
            self.program(), init_loc_fn=init_to_value(values=self.begin), init_scale=self.plan.width
        )
        self.guide = guide
        model = self.program(self.plan.temperature)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": self.plan.rate}), Trace_ELBO())
        return lambda: svi.step(*self.data)

    def proximal(self) -> Callable[[], Any]:
        """A step of the proximal fit."""
        engine = self._engine()
        engine.setup(*self.data, start=self.begin)
        return lambda: engine.step(*self.data)

    def _engine(self) -> px.ProximalScoreVI:
        plan = self.plan
        return px.ProximalScoreVI(
            self.program(),
            AutoDiagonalNormal,
            solver=px.GradientSteps(self.rates(plan.rate), num_inner_steps=2),
            initial_scale=plan.width,
            total_steps=plan.steps,
            likelihood_temperature=plan.temperature,
            seed=plan.seed,
        )

    def sgld(self) -> Callable[[], None]:
        """A step of stochastic gradient Langevin dynamics."""
        return self._stepping(self._kernel(), *self.data)

    def _stepping(self, kernel: Any, *data: Tensor) -> Callable[[], None]:
        """A step of a kernel."""
        kernel.initial_params = self._flat_start()
        kernel.setup(0, *data)
        params = kernel.initial_params

        def step() -> None:
            nonlocal params
            params = kernel.sample(params)

        return step

    def _kernel(self) -> px.SGLD:
        plan = self.plan
        rate = plan.sgd_rate * plan.temperature / len(self.images)
        return px.SGLD(self.program(), rate, likelihood_temperature=plan.temperature)

    def _flat_start(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.begin.items()}

    def mclmc(self) -> Callable[[], None]:
        """A step of microcanonical dynamics of a given length, on a batch as if it were all."""
        width, batch = self.plan.width, self.plan.batch
        kernel = px.MCLMC(self.program(), step_size=width, length=10.0 * width)
        return self._stepping(kernel, self.images[:batch], self.labels[:batch])

    def svgd(self) -> Callable[[], Any]:
        """A step of particles."""
        optim = pyro.optim.Adam({"lr": self.plan.rate})
        engine = px.SVGD(self.program(), optim, num_particles=PARTICLES)
        engine.setup(*self.data, start="host")
        return lambda: engine.step(*self.data)

    # -- fits ----------------------------------------------------------------------------------

    def fit(self, method: str, images: Any) -> np.ndarray:
        """Class probabilities (n, K) of test images by a method's fit."""
        plan = self.plan
        step: Callable[[], Any]
        if method in ("SGD", "MC dropout"):
            step = self.sgd(plan.dropout if method == "MC dropout" else 0.0)
            for _ in range(plan.steps):
                step()
            return self.probabilities(images, plan.draws if method == "MC dropout" else 1)
        if method == "ADVI":
            step = self.advi()
            for _ in range(plan.steps):
                step()
            drawn = [self.guide(*self.data) for _ in range(plan.draws)]
            return self.predicted(
                {k: torch.stack([d[k] for d in drawn]) for k in self.begin}, images
            )
        if method == "SGLD":
            thinning = max(1, plan.steps // (2 * plan.draws))
            chain = px.MCMC(
                self._kernel(),
                plan.draws,
                warmup_steps=plan.steps - thinning * plan.draws,
                initial_params=self._flat_start(),
                thinning=thinning,
                disable_progbar=True,
            )
            chain.run(*self.data)
            return self.predicted(chain.get_samples(), images)
        if method == "proximal":
            engine = self._engine()
            engine.run(plan.steps, *self.data, start=self.begin, progress_bar=False)
            return self.predicted(engine.get_samples(plan.draws), images)
        laplace = px.LaplaceGGN(
            self.program(),
            pyro.optim.Adam({"lr": plan.rate}),
            curvature=px.GaussNewton("full", sites=self.last),
            seed=plan.seed,
        )
        laplace.run(plan.steps, *self.data, start=self.begin, progress_bar=False)
        return self.predicted(laplace, images, linearize=True, num_samples=plan.draws)

    def predicted(self, draws: Any, images: Any, **options: Any) -> np.ndarray:
        """Means over draws of the class probabilities, of some images at once."""
        parts = [
            px.predictive_distribution(self.program(), draws, part, **options)["probabilities"]
            for part in torch.from_numpy(images).split(CHUNK)
        ]
        return np.concatenate([part.mean("draw").values for part in parts])


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
    """Return when the device has done what it was asked."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes() -> int | None:
    """Most bytes that this process held on an accelerator; None without one."""
    return torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else None
