"""Posteriors and methods in Pyro; see :mod:`benchmarks.posteriordb.numpyro_fits`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
    init_to_uniform,
)
from torch import Tensor

import pyro_ext as px
from benchmarks.hosts import falling_adam
from benchmarks.posteriordb.methods import (
    CHAINS,
    COMPONENTS,
    INITIAL_SCALE,
    PARTICLES,
    RADIUS,
    Draws,
    Fitter,
    Floats,
    Look,
    Method,
    WholeFitter,
    after_warm_up,
    check_noise,
    cost_of,
    of_chains,
    own_engine,
    sweeps_of,
    warm_up,
)
from benchmarks.posteriordb.native import OfSites, OfStan
from benchmarks.posteriordb.programs import pyro_program, site_map
from benchmarks.posteriordb.programs.sites import SiteMap
from benchmarks.synthetic.pyro_fits import white_noise
from ppl_ext.start.given import SEARCH
from ppl_ext.start.start import Start
from pyro_ext.curvature.gauss_newton import whitened_outputs
from pyro_ext.curvature.row_structure import row_structure
from pyro_ext.density import LogDensity
from pyro_ext.guides.mixture import AutoGaussianMixture
from pyro_ext.start import started


def configure() -> None:
    """Double precision from here on."""
    torch.set_default_dtype(torch.float64)


def release() -> None:
    """Nothing: graphs belong to the programs."""


def as_tensor(values: Any) -> Tensor:
    """Numbers in double precision."""
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def as_array(values: Tensor) -> Floats:
    """The same as an array."""
    return np.asarray(values.detach().numpy(), np.float64)


class NativeProgram(OfSites):
    """A program with its target; see :class:`~benchmarks.posteriordb.methods.Program`."""

    def __init__(self, model: Callable[[], Any], sites: SiteMap) -> None:
        self.model, self._sites = model, sites
        self.target = LogDensity(model)
        self.data = self.target.bind()
        self.dim: int = self.target.dim

    def log_density(self, z: Floats) -> Floats:
        """See the protocol."""
        return as_array(self.target.log_density(as_tensor(z), self.data))

    def value_and_score(self, z: Floats) -> tuple[Floats, Floats]:
        """See the protocol."""
        found = self.target.score(as_tensor(z), self.data)
        return as_array(found.log_prior + found.log_likelihood), as_array(found.score)

    def parameters(self, z: Floats) -> dict[str, Floats]:
        """See the protocol."""
        found = self.target.constrain(as_tensor(z), self.data)
        return self._sites.parameters({name: as_array(value) for name, value in found.items()})

    def unconstrained(self, sites: Mapping[str, Any]) -> Floats:
        """Positions (n, D) of values of the sites, draws first."""
        values = {name: as_tensor(sites[name]) for name in self.target.layout.names}
        return as_array(self.target.unconstrain(values, self.data))

    def start(self, seed: int) -> Start:
        """See the protocol."""
        generator = torch.Generator().manual_seed(seed)
        found = started(self.target, generator, self.data, SEARCH)
        assert found is not None
        return found.start


class StanProgram(OfStan, NativeProgram):
    """A Stan program, whose draws have the parameters under Stan's names."""

    def parameters(self, z: Floats) -> dict[str, Floats]:
        """See the protocol."""
        found = self._program.constrain(as_tensor(z))
        return {name: np.asarray(value, np.float64) for name, value in found.items()}


def native(model_name: str, data: Mapping[str, Any]) -> NativeProgram:
    """The native program of a model."""
    return NativeProgram(partial(pyro_program(model_name), data), site_map(model_name))


def stan(model_name: str, program: str, data: Mapping[str, Any]) -> NativeProgram:
    """A Stan program of a model."""
    return StanProgram(px.stan.model(program, data), site_map(model_name))


def noisy(program: NativeProgram, level: float, seed: int) -> Callable[[], None]:
    """The density of a program with noise in its score, for the host's own engines.

    See the NumPyro module. Engines of ours take the estimator ``Noisy`` instead.
    """

    def model() -> None:
        flat = dist.Normal(torch.zeros(program.dim), 1.0).to_event(1).mask(False)
        z = pyro.sample("z", flat)
        held = z.detach()
        with pyro.poutine.block():  # The sites inside are not of this program.
            found = program.target.score(held[None], program.data)
        score = found.score[0].detach()
        density = (found.log_prior + found.log_likelihood)[0].detach()
        noise = level * score.abs().max() * white_noise(held, torch.tensor(seed))
        pyro.factor("density", density + ((score + noise) * (z - held)).sum())

    return model


def fitter(program: NativeProgram, method: Method, budget: int, noise: float) -> Fitter:
    """A method on a program."""
    check_noise(method, noise)
    if method.family == "fit":

        def run(seed: int) -> tuple[int, Draws]:
            found = px.fit(program.model, seed=seed, budget=budget, progress_bar=False)
            return found.verdict.evaluations, Draws(program.unconstrained(found.draws))

        return WholeFitter(run)
    kind: dict[str, Any] = {"host": HostFitter, "guide": EngineFitter}
    kind |= {"particles": EngineFitter, "chains": StochasticGradientFitter, "MCMC": ChainFitter}
    kind["own"] = EngineFitter
    made: Fitter = kind[method.family](program, method, budget, noise)
    return made


def make_guide(name: str, model: Callable[[], Any], start: Start | None) -> Any:
    """A guide of a model by its family's name, set up, one of the host's at the start."""
    options: dict[str, Any] = {"init_loc_fn": init_to_uniform(radius=RADIUS)}
    if name == "mixture":
        guide: Any = AutoGaussianMixture(model, COMPONENTS, **options)
    elif name == "Laplace":
        guide = AutoLaplaceApproximation(model, **options)
    else:
        kind = {"diagonal": AutoDiagonalNormal, "full": AutoMultivariateNormal}[name]
        guide = kind(model, init_scale=INITIAL_SCALE, **options)
    # Pyro's store would hand the parameters of the guide before to this one.
    pyro.clear_param_store()
    guide()
    if start is None:
        return guide
    root = start.modes[0].root
    diagonal = np.diag(root)
    unit = root / diagonal[:, None]
    guide.loc.data.copy_(as_tensor(start.mean))
    if name == "diagonal":
        guide.scale = as_tensor(start.modes[0].conditional_deviations)
    elif name == "full":
        guide.scale = as_tensor(diagonal.copy())
        guide.scale_tril = as_tensor(unit)
    return guide


def steps_of(points: list[int], spent: int, cost: float) -> list[int]:
    """Steps after which a run is looked at, of evaluations that ``spent`` of are gone already."""
    counts = (int((point - spent) / cost) for point in points)
    return sorted({count for count in counts if count > 0})


def newton_sweeps(program: NativeProgram) -> int | None:
    """See :func:`~benchmarks.posteriordb.methods.sweeps_of`; None where there are no outputs."""
    target, data = program.target, program.data
    if not target.observed_sites:
        return None
    z = as_tensor(np.random.default_rng(0).uniform(-1.0, 1.0, program.dim))
    rows = target.first_rows()
    structure = row_structure(target, z, data, rows)

    def size(indices: Any, sites: Collection[str]) -> int:
        return len(whitened_outputs(target, z, data, indices, sites, structure.repeated, False)(z))

    of_a_row = 0
    if structure.by_row:
        of_a_row = size({plate: found[:1] for plate, found in rows.items()}, structure.by_row)
    others = set(target.outputs(z, data, rows)) - structure.by_row
    # Of all rows, where some are taken here.
    share = math.prod(target.plates[plate].size / len(found) for plate, found in rows.items())
    return sweeps_of(of_a_row, share * size(rows, others), program.dim)


class EngineFitter:
    """An engine of ours; see :class:`~benchmarks.posteriordb.methods.Fitter`."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        self._program, self._method = program, method
        self._budget, self._noise = budget, noise
        sweeps = newton_sweeps(program) if method.engine == "SVN" else None
        self._cost = cost_of(method, program.dim, sweeps)

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        method, model = self._method, self._program.model
        own = method.family == "own"
        kind: Any = own_engine(method.engine) if own else getattr(px, method.engine)
        options = dict(method.options) | {"on_nonfinite": "skip", "seed": seed}
        if self._noise:
            options["estimator"] = px.Noisy(px.Full(), level=self._noise)
        pyro.set_rng_seed(seed)
        each, begin = PARTICLES, "host" if start is None else start
        spent = 0 if start is None else start.evaluations
        particles = method.family == "particles"
        if own:
            engine = kind(model, **options)
            engine.setup(start=begin)
            particles = hasattr(engine, "num_particles")
            each = int(engine.num_particles if particles else engine.plan.num_samples)
        elif particles:
            spent += round(self._cost.start * each)
            steps = int((self._budget - spent) / (self._cost.step * each))
            optim = () if method.engine == "SVN" else (falling_adam("pyro", rate, max(1, steps)),)
            engine = kind(model, *optim, num_particles=PARTICLES, **options)
            engine.setup(start=begin)
        else:
            assert method.guide is not None
            engine = kind(model, make_guide(method.guide, model, None), **options)
            engine.setup(start=begin)
            each = int(engine.plan.num_samples)
        cost = self._cost.step * each
        wanted = steps_of(points, spent, cost)
        clock = _Clock()

        def draws(number: int) -> Draws:
            if particles:
                return Draws(as_array(engine.particles))
            density, parameters = engine.density, engine.density.live_parameters()
            with torch.no_grad():
                z = density.sample(parameters, torch.Generator().manual_seed(1), number)
                return Draws(as_array(z), as_array(density.log_prob(parameters, z)))

        def callback(step: int, _: Any, __: Any) -> bool:
            if step not in wanted:
                return False
            clock.stop()
            ended = look(spent + round(step * cost), clock.seconds, draws)
            clock.start()
            return ended

        if wanted:
            clock.start()
            engine.run(wanted[-1], progress_bar=False, callback=callback, callback_every=1)


class _Clock:
    """Seconds of the steps, without those of looks."""

    def __init__(self) -> None:
        self.seconds, self._since = 0.0, 0.0

    def start(self) -> None:
        self._since = time.perf_counter()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self._since


class HostFitter:
    """Variational inference of the host's own."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        assert method.guide is not None
        self._model = noisy(program, noise, 0) if noise else program.model
        self._guide = method.guide
        # The Hessian of Laplace's approximation costs a score for each coordinate, once.
        self._spare = program.dim if method.guide == "Laplace" else 0
        self._budget = budget

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        spent = self._spare + (0 if start is None else start.evaluations)
        pyro.set_rng_seed(seed)
        guide = make_guide(self._guide, self._model, start)
        optim = falling_adam("pyro", rate, max(1, self._budget - spent))
        svi = SVI(self._model, guide, optim, Trace_ELBO())
        wanted = set(steps_of(points, spent, 1.0))
        clock = _Clock()

        def draws(number: int) -> Draws:
            found = guide.laplace_approximation() if self._guide == "Laplace" else guide
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(1)
                posterior = found.get_posterior()
                z = posterior.sample((number,))
                log_q = posterior.log_prob(z)
            return Draws(as_array(z), as_array(log_q if log_q.ndim == 1 else log_q.sum(-1)))

        clock.start()
        for step in range(1, max(wanted, default=0) + 1):
            svi.step()
            optim.step()
            if step in wanted:
                clock.stop()
                if look(spent + step, clock.seconds, draws):
                    return
                clock.start()


def _all(drawn: Draws, number: int) -> Draws:
    """What a chain has, however many draws are asked for."""
    return drawn


class StochasticGradientFitter:
    """Stochastic gradient MCMC, with masses that make the start's coordinates alike."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        self._program, self._method = program, method
        self._estimator = px.Noisy(px.Full(), level=noise) if noise else None

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        program, options = self._program, dict(self._method.options)
        assert rate is not None
        spent, scale, z = of_chains(start, program.dim, seed, CHAINS)
        kind: Any = getattr(px, self._method.engine)
        kernel = kind(program.model, rate, mass=scale**-2, estimator=self._estimator, **options)
        pyro.set_rng_seed(seed)
        kernel.initial_params = program.target.layout.split(as_tensor(z))
        kernel.setup_chains(CHAINS, 0)
        positions: list[Floats] = []
        clock = _Clock()
        clock.start()
        for point in points:
            steps = (point - spent) // CHAINS
            if steps < 1:
                continue
            while len(positions) < steps:
                positions.append(as_array(kernel.draw().z))
            clock.stop()
            draws = Draws(after_warm_up(np.stack(positions)))
            if look(spent + steps * CHAINS, clock.seconds, partial(_all, draws)):
                return
            clock.start()


class ChainFitter:
    """NUTS, one chain: the warm-up is part of the budget."""

    def __init__(self, program: NativeProgram, method: Method, budget: int, noise: float) -> None:
        self._program, self._warm_up = program, warm_up(budget)

    def fit(
        self, seed: int, rate: float | None, start: Start | None, points: list[int], look: Look
    ) -> None:
        """See the protocol."""
        pyro.set_rng_seed(seed)
        kernel = NUTS(self._program.model, init_strategy=init_to_uniform(radius=RADIUS))
        kernel.setup(self._warm_up)
        potential, spent = kernel.potential_fn, 0

        def counted(params: Any) -> Any:
            nonlocal spent
            spent += 1
            return potential(params)

        kernel.potential_fn = counted
        target, data = self._program.target, self._program.data
        params, positions = kernel.initial_params, []
        remaining, number, before, clock = list(points), 0, None, _Clock()
        clock.start()
        while remaining:
            params = kernel.sample(params)
            number += 1
            if number > self._warm_up:
                sites = {name: kernel.transforms[name].inv(params[name]) for name in params}
                rows = {name: value.detach()[None] for name, value in sites.items()}
                positions.append(as_array(target.unconstrain(rows, data))[0])
                before = before or spent
            if spent < remaining[0]:
                continue
            remaining = [point for point in remaining if point > spent]
            if len(positions) < 2:
                continue
            clock.stop()
            drawn = Draws(np.stack(positions), before=before)
            if look(spent, clock.seconds, partial(_all, drawn)):
                return
            clock.start()
