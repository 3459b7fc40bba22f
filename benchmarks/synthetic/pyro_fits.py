"""The synthetic targets as one Pyro program, and every method's fit of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, init_to_value
from pyro.optim import Adam
from torch import Tensor

import pyro_ext as px
from benchmarks.hosts import falling_adam
from benchmarks.synthetic.experiments import Case, Method, engine_options, iterations_to_look_at
from benchmarks.synthetic.fits import Diverged, Fitter, Look, show
from benchmarks.synthetic.targets import Mixture
from ppl_ext.errors import NonFiniteError
from pyro_ext.engine import Engine
from pyro_ext.guides.mixture import AutoGaussianMixture
from pyro_ext.score.fisher import FisherVI
from pyro_ext.score.matching import GSM, BaM

BACKEND = "Pyro"
ENGINES: dict[str, Any] = {
    "proximal": px.ProximalScoreVI,
    "gsm": GSM,
    "bam": BaM,
    "fisher": FisherVI,
}

# Odd 64-bit constants of the splitmix64 generator, as signed numbers: torch has no unsigned ones.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def configure(float64: bool) -> None:
    """Set the precision of everything that follows."""
    # Vectors this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)


def is_float64() -> bool:
    """Whether results have double precision."""
    return torch.get_default_dtype() == torch.float64


def white_noise(theta: Tensor, seed: Tensor) -> Tensor:
    """Standard normal numbers (D,) that are a function of theta (D,) and of a seed.

    The bits of theta are mixed into the numbers, so that numbers at any two points are as good as
    independent. A program with such noise is still a function of its latents, which lets every
    method take it: the host's SVI as it is, and engines that trace the program once to a graph.
    """
    places = torch.arange(1, theta.shape[-1] + 1) * _GOLDEN
    words = theta.detach().to(torch.float64).view(torch.int64)
    point = _mixed(_mixed(words + places).sum(-1, keepdim=True) + seed * _FIRST)
    bits = _shifted(_mixed(point + places), 11).to(torch.float64)
    return torch.special.ndtri((bits + 0.5) * 2.0**-53).to(theta.dtype)


def _mixed(words: Tensor) -> Tensor:
    """Words of 64 bits, each bit of which depends on all bits of the word given (splitmix64)."""
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, count: int) -> Tensor:
    """Words of 64 bits moved to the right, filled with zeros: torch fills with the sign."""
    return (words >> count) & (2 ** (64 - count) - 1)


def score(theta: Tensor, log_factors: Tensor, means: Tensor, whitening: Tensor) -> Tensor:
    """Score of a mixture of Normals at theta (D,)."""
    standard = torch.einsum("kij,kj->ki", whitening, theta - means)
    shares = torch.softmax(log_factors - 0.5 * standard.square().sum(-1), -1)
    return -torch.einsum("k,kij,ki->j", shares, whitening, standard)


def program(
    log_factors: Tensor,
    means: Tensor,
    whitening: Tensor,
    level: Tensor | None = None,
    seed: Tensor | None = None,
) -> None:
    """A mixture of Normals as a program; see the NumPyro module."""
    flat = dist.Normal(0.0, 1.0).expand([means.shape[1]]).to_event(1).mask(False)
    theta = pyro.sample("theta", flat)
    standard = torch.einsum("kij,kj->ki", whitening, theta - means)
    value = torch.logsumexp(log_factors - 0.5 * standard.square().sum(-1), -1)
    if level is not None:
        assert seed is not None
        held = theta.detach()
        exact = score(held, log_factors, means, whitening)
        noise = level * exact.abs().amax(-1) * white_noise(held, seed)
        # Zero in value, with the noise as its gradient.
        value = value + (noise * (theta - held)).sum(-1)
    pyro.factor("target", value)


def arguments(target: Mixture, noise: float | None, seed: int) -> tuple[Tensor, ...]:
    """Arguments of :func:`program` for a target."""
    dtype = torch.get_default_dtype()
    arrays = (target.log_factors, target.means, target.whitening)
    given = tuple(torch.tensor(array, dtype=dtype) for array in arrays)
    if noise is None:
        return given
    return (*given, torch.tensor(noise, dtype=dtype), torch.tensor(seed))


@torch.no_grad()
def to_mixture(guide: Any) -> Mixture:
    """The guide's present density."""
    posterior = guide.get_posterior()
    means = posterior.loc.double().numpy()
    scale_trils = posterior.scale_tril.double().numpy()
    if means.ndim == 1:
        return Mixture(np.ones(1), means[None].copy(), scale_trils[None].copy())
    weights = torch.softmax(posterior.logits.double(), -1).numpy()
    return Mixture(weights, means.copy(), scale_trils.copy())


def make_guide(case: Case, method: Method, args: tuple[Tensor, ...], seed: int) -> Any:
    """The case's guide at its start, or the Normal one for a method that knows no other."""
    location = torch.tensor(case.start(seed), dtype=torch.get_default_dtype())
    options: dict[str, Any] = {
        "init_loc_fn": init_to_value(values={"theta": location}),
        "init_scale": case.start_scale,
    }
    if case.guide_order == 1 or method.normal_only:
        guide = AutoMultivariateNormal(program, **options)
    else:
        guide = AutoGaussianMixture(program, case.guide_order, **options)
    # Pyro's store would hand the parameters of the guide before to this one.
    pyro.clear_param_store()
    # A mixture's means start at random: the same for all methods of a seed.
    with torch.random.fork_rng():
        pyro.set_rng_seed(_mixed_seed(seed))
        guide(*args)
    return guide


def _mixed_seed(seed: int) -> int:
    """A seed with many bits set; torch's generator starts badly from others."""
    return int(np.random.SeedSequence([3, seed]).generate_state(1)[0])


class EngineFitter:
    """A method of this project; ``rate`` is Adam's first, None for the engine's own optimizer."""

    def __init__(self, case: Case, method: Method, rate: float | None) -> None:
        self._method, self._rate = method, rate

    def fit(self, case: Case, seed: int, look: Look) -> None:
        """See :class:`~benchmarks.synthetic.fits.Fitter`."""
        args = arguments(case.target(seed), case.noise, seed)
        guide = make_guide(case, self._method, args, seed)
        optim: Any = None
        if self._rate is not None:
            samples = dict(self._method.options)["num_samples"]
            optim = falling_adam("pyro", self._rate, max(1, case.budget // samples))
        elif self._method.constant_rate is not None:
            optim = Adam({"lr": self._method.constant_rate})
        options = engine_options(self._method, optim)
        engine = ENGINES[self._method.kind](program, guide, seed=seed, **options)
        engine.setup(*args)
        samples = engine.plan.num_samples
        points = iterations_to_look_at(case.budget, samples, case.points)
        wanted = set(points)

        def callback(iteration: int, engine: Engine, info: Mapping[str, float]) -> None:
            if iteration in wanted:
                show(look, iteration * samples, to_mixture(guide))

        show(look, 0, to_mixture(guide))
        try:
            engine.run(points[-1], *args, progress_bar=False, callback=callback, callback_every=1)
        except NonFiniteError as error:
            raise Diverged(f"step {error.step} of {samples} scores was not finite") from error


class HostFitter:
    """ADVI: Pyro's own SVI with ``Trace_ELBO``, one draw a step."""

    def __init__(self, case: Case, method: Method, rate: float) -> None:
        self._method, self._rate = method, rate

    def fit(self, case: Case, seed: int, look: Look) -> None:
        """See :class:`~benchmarks.synthetic.fits.Fitter`."""
        args = arguments(case.target(seed), case.noise, seed)
        guide = make_guide(case, self._method, args, seed)
        show(look, 0, to_mixture(guide))
        pyro.set_rng_seed(_mixed_seed(seed + 1))
        optim = falling_adam("pyro", self._rate, case.budget)
        svi = SVI(program, guide, optim, Trace_ELBO())
        wanted = set(iterations_to_look_at(case.budget, 1, case.points))
        for iteration in range(1, max(wanted) + 1):
            svi.step(*args)
            optim.step()
            if iteration in wanted:
                show(look, iteration, to_mixture(guide))


def fitter(case: Case, method: Method, rate: float | None) -> Fitter:
    """The method on cases of this shape; ``rate`` is for methods with a tuned one."""
    if method.kind == "advi":
        assert rate is not None
        return HostFitter(case, method, rate)
    return EngineFitter(case, method, rate)
