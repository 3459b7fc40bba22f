"""The stochastic gradient MCMC kernels without arrays: their options, and what these decide."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int

from ppl_ext.arguments import check_callable
from ppl_ext.documented import documents_subclasses
from ppl_ext.engines.judgement import LONGEST, Judgement
from ppl_ext.errors import ArgumentError, ConvergenceWarning
from ppl_ext.options import check_count, check_number
from ppl_ext.running.sharding import ShardingShell, check_sharding
from ppl_ext.sgmcmc.energies import Energies
from ppl_ext.sgmcmc.heat import judged_heat
from ppl_ext.sgmcmc.schedules import (
    Schedule,
    as_schedule,
    check_cycles,
    check_preconditioner,
    check_temperatures,
    cosine_cycles,
    diagonal_of_mass,
)
from ppl_ext.start.given import check_start
from ppl_ext.statistics.convergence import split_r_hat
from ppl_ext.target.bounds import Look, told_of_bounds
from ppl_ext.target.layouts import names_of_coordinates
from ppl_ext.target.on_host import as_float64

#: Mean of a coordinate's scores over the warm-up, in units of their root mean square, above which
#: the chain is on its way in that coordinate. That of n independent draws is about 1 / sqrt(n).
ON_THE_WAY = 0.8
#: R-hat from which on chains do not agree, and draws of a chain from which on it tells: halves that
#: are worth three draws each have an R-hat of 1.15 by chance.
APART, LEAST_DRAWS = 1.2, 50
#: R-hat of a site from which on chains lie apart, as in two modes that are a little more than two
#: standard deviations from each other. Of many sites with slow chains the worst has 1.3.
PLACES_APART = 1.5
#: Numbers that are looked at together, at most, a second's work: fewer draws of long vectors.
NUMBERS = 2**21


class Step(NamedTuple):
    """What moves the chains in a step besides their positions.

    Parameters
    ----------
    score, noise : array (P, D)
        Score at the positions, and standard normal numbers times the root of the temperature.
    size : float
        The step size.
    warmup : bool
        Whether the step is one of the warm-up.
    """

    score: Float[Any, "P D"]
    noise: Float[Any, "P D"]
    size: Any
    warmup: Any


@documents_subclasses
class StochasticGradientShell:
    """Base of the stochastic gradient MCMC kernels.

    Use with the host's ``MCMC``. Rows of a plate with ``subsample_size`` are drawn by the kernel,
    for every chain apart. NumPyro's ``chain_method="vectorized"`` runs all chains in one compiled
    update. Pyro's ``MCMC`` runs them one after another or in processes, and
    :class:`pyro_ext.sgmcmc.MCMC` as one vectorised update; there all randomness follows
    ``pyro.set_rng_seed``.

    Parameters
    ----------
    model : callable
        The host's model, used as it is.
    step_size : float or callable
        Step size, or a function from the number of steps taken to it, such as
        :func:`~ppl_ext.sgmcmc.schedules.polynomial_decay` or, in NumPyro, a schedule of optax.
    estimator : GradientEstimator, optional
        How scores are computed. Default: minibatches when the model subsamples a plate itself,
        else all rows of the arguments. ``ControlVariate`` and ``SVRG`` lessen the noise of
        minibatches.
    start : optional
        Where chains start: "search" for Normals near the modes, "host" for the init strategy, a
        ``Start`` of ``find_start``, a fit, a dict from latent sites to values or draws, a guide
        with its parameters, or an object with ``get_samples()``, such as an engine that has run;
        in NumPyro also a pair (engine, result). Default: "host". What the host's ``MCMC`` is given
        as initial parameters goes first.
    init_strategy : callable, optional
        Strategy of ``numpyro.infer``, default ``init_to_uniform``, or of
        ``pyro.infer.autoguide.initialization``.
    likelihood_temperature : float
        The likelihood part of the log density is divided by this.
    data_chunk : int, optional
        Bound on the rows evaluated at once in a sweep over all.
    sharding : Sharding, optional
        How chains that are run as one, and rows, are split over devices.
    evaluation : {"graph", "inductor", "handlers", "loop"}
        In Pyro, how scores are evaluated; see :class:`pyro_ext.density.LogDensity`.
    dtype : torch.dtype, optional
        In Pyro; default torch's default dtype.

    Raises
    ------
    ArgumentError
        An option is not one of those listed.
    """

    estimator_class: ClassVar[type]
    #: What models are written in.
    _host: ClassVar[str]
    #: What says how chains and rows are split over devices.
    _sharding_class: ClassVar[type[ShardingShell]]
    #: How a guide of the host is given with its parameters.
    _guide_form: ClassVar[str]
    #: Whether this is a guide of the host with parameters.
    _is_guide: ClassVar[Callable[..., bool]]

    #: Of the replicas of a chain, of which the first gives the draws.
    temperatures: tuple[float, ...] = (1.0,)
    #: Steps that a draw takes.
    num_steps = 1

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | Schedule,
        *,
        estimator: Any = None,
        start: Any = None,
        init_strategy: Callable[..., Any] | None = None,
        likelihood_temperature: float = 1.0,
        data_chunk: int | None = None,
        sharding: Any = None,
    ) -> None:
        check_callable(model, self._host)
        if estimator is not None and not isinstance(estimator, self.estimator_class):
            raise ArgumentError(
                "Expected estimator to be a GradientEstimator, such as Minibatch() or Full(), "
                f"found {type(estimator).__name__}."
            )
        check_start(start, self._is_guide, self._guide_form)
        self._model = model
        self.start = start
        self.step_size = as_schedule(step_size)
        self._estimator: Any = estimator
        self._target_options: dict[str, Any] = {
            "init_strategy": init_strategy,
            "likelihood_temperature": likelihood_temperature,
            "data_chunk": data_chunk,
        }
        if sharding is not None:
            check_sharding(sharding, self._sharding_class)
            self._target_options["sharding"] = sharding
        self.sharding = sharding
        self._target: Any = None
        self._signature: Any = None
        # Whether the model draws the weights of a network.
        self._is_network = False

    @property
    def model(self) -> Callable[..., Any]:
        """The host's model."""
        return self._model

    @property
    def target(self) -> Any:
        """The model as a ``LogDensity``.

        Raises
        ------
        RuntimeError
            The kernel has not seen the model's arguments yet.
        """
        if self._target is None:
            raise RuntimeError(
                f"{type(self).__name__} has not seen the model's arguments yet. Call MCMC.run "
                "with them first."
            )
        return self._target

    @property
    def num_replicas(self) -> int:
        """Positions of a chain, one for each temperature."""
        return len(self.temperatures)

    def _steps_to_next_draw(self, step: Any) -> Any:
        """Steps that one draw takes when ``step`` steps have been taken."""
        return self.num_steps

    def _temperature(self, step: Any) -> Any:
        """Temperature of the noise of a step, or (R, 1) of them, one for each replica."""
        return 1.0

    def _cycle(self, step: Any) -> Any:
        """Cycle of the draw that follows when ``step`` steps have been taken."""
        return 0 * step

    def _heat(self, dynamics: Any, step_size: Any) -> Any:
        """What noise of variance 1 in the scores adds to a variance, relative to the posterior's.

        One number, or an array that broadcasts to (C, D).
        """
        raise NotImplementedError

    def _judgement(self, energies: Energies, heat: Any, doubts: Sequence[str] = ()) -> Judgement:
        """What chains say of their draws by their energies, and by ``heat_by_site`` (C, sites).

        ``doubts`` are :meth:`_doubts`.
        """
        found = energies.judged(type(self).__name__, self.target.dim)
        reasons, told = judged_heat(heat, self.target.layout.names)
        return replace(found, reasons=(*found.reasons, *reasons, *doubts), told=found.told + told)

    def _looked_at(self, num_chains: int, number: int) -> Int[np.ndarray, " S"]:
        """Which of so many draws of each chain :meth:`_doubts` are of; none of long vectors."""
        dim = self.target.dim
        most = 0 if dim > LONGEST else NUMBERS // (num_chains * max(1, dim))
        return np.linspace(0, number - 1, min(number, most)).astype(int)

    def _doubts(self, z: Float[np.ndarray, "C S D"], look: Look | None) -> tuple[str, ...]:
        """What draws of C chains, as flat positions, say against them.

        Some may be beyond the bounds of a distribution, and chains may lie apart; those of the
        weights of a network do, where its outputs are the same.
        """
        doubts = told_of_bounds(look, z.reshape(z.shape[0] * z.shape[1], z.shape[2]))
        if len(z) == 1 or z.shape[1] < LEAST_DRAWS or self._is_network:
            return doubts
        # Draws that are not finite are told otherwise.
        r_hat = np.nan_to_num(split_r_hat(z.transpose(1, 0, 2)), posinf=np.inf)
        if not r_hat.max(initial=0.0) > PLACES_APART:
            return doubts
        worst = names_of_coordinates(self.target.layout.slices)[int(r_hat.argmax())]
        apart = (
            f"R-hat of '{worst}' is {r_hat.max():.3g}: the chains do not agree. Run them longer, "
            "or use `fit`, which looks for several modes."
        )
        return (*doubts, apart)

    def _check_not_one_batch(self, estimator: Any, plate: str, advice: str = "") -> None:
        """See that the arguments hold all rows.

        Parameters
        ----------
        estimator : GradientEstimator
        plate : str
            The host's function that makes a plate.
        advice : str
            What else may be done about it.

        Raises
        ------
        ArgumentError
            They hold a batch.
        """
        if estimator.needs_new_arguments(self.target):
            raise ArgumentError(
                "Expected all rows of the data: the arguments hold a batch, of which MCMC would "
                "take the scores at every step. Pass all batches to the kernel, "
                "estimator=BatchArguments([(x, y), ...]), or leave the rows to the kernel by "
                f"'with {plate}(name, N, subsample_size=B) as i' and data looked up by i.{advice}"
            )


class SGLDShell(StochasticGradientShell):
    """Stochastic gradient Langevin dynamics: gradient ascent on minibatches with Normal noise.

    Each package's ``SGLD`` has the whole text.
    """

    def _heat(self, dynamics: Any, step_size: Any) -> Any:
        return 0.5 * step_size


class Cycles(StochasticGradientShell):
    """Step sizes that rise and fall in cycles, around a kernel that the class is mixed into.

    Raises
    ------
    ArgumentError
        An option is out of its range, or ``step_size`` is a schedule.
    """

    #: Power of the cosine that step sizes follow.
    _power: ClassVar[float] = 1.0

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float,
        cycle_length: int,
        *,
        exploration: float = 0.75,
        exploration_temperature: float = 1.0,
        **options: Any,
    ) -> None:
        if "num_steps" in options:
            raise ArgumentError(
                "Expected no num_steps: after the exploring steps of a cycle every step of "
                f"{type(self).__name__} gives a draw. Use thinning of MCMC to keep fewer."
            )
        check_cycles(step_size, cycle_length, exploration, exploration_temperature)
        schedule = cosine_cycles(step_size, cycle_length, self._power)
        super().__init__(model, schedule, **options)
        self.cycle_length = int(cycle_length)
        self.num_exploring = int(exploration * cycle_length)
        self.exploration_temperature = float(exploration_temperature)

    @property
    def draws_per_cycle(self) -> int:
        """Draws that a cycle gives."""
        return self.cycle_length - self.num_exploring

    def _steps_to_next_draw(self, step: Any) -> Any:
        left = self.num_exploring - step % self.cycle_length
        # Without a branch, since the step may be traced.
        return 1 + left * (left > 0)

    def _temperature(self, step: Any) -> Any:
        exploring = step % self.cycle_length < self.num_exploring
        drawing = step % self.cycle_length >= self.num_exploring
        return exploring * self.exploration_temperature + drawing * 1.0

    def _cycle(self, step: Any) -> Any:
        return step // self.cycle_length


class ScoreMoments(NamedTuple):
    """What ``PSGLD`` keeps of the scores of its chains.

    Parameters
    ----------
    squares : array (C, D)
        Running sum of squares, where the past counts less and less.
    weight : array (C, 1)
        The weight that it has so far; divided by it, it is a mean from the first step on.
    mean, mean_square : array (C, D)
        Means of scores and of their squares over all steps, where step t counts as its cube: the
        second half has fifteen times the weight of the first.
    steps : array (C, 1)
    """

    squares: Float[Any, "C D"]
    weight: Float[Any, "C 1"]
    mean: Float[Any, "C D"]
    mean_square: Float[Any, "C D"]
    steps: Float[Any, "C 1"]

    def preconditioner(self, damping: float) -> Float[Any, "C D"]:
        """The diagonal of G: divided by its weight the mean is right from the first step on."""
        return 1.0 / (damping + (self.squares / self.weight) ** 0.5)

    def with_score(self, score: Float[Any, "C D"], decay: float) -> Self:
        """The same with the scores of one more step."""
        # Step t counts t^3, and all steps to t about t^4 / 4.
        share, square = 4.0 / (self.steps + 4.0), score**2
        return type(self)(
            decay * self.squares + (1.0 - decay) * square,
            decay * self.weight + (1.0 - decay),
            self.mean + share * (score - self.mean),
            self.mean_square + share * (square - self.mean_square),
            self.steps + 1.0,
        )


class PSGLDShell(StochasticGradientShell):
    """SGLD with steps scaled by RMSprop's running mean of squared scores.

    Each package's ``PSGLD`` has the whole text.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | Schedule,
        *,
        decay: float = 0.99,
        damping: float = 1e-5,
        adapt: str = "warmup",
        **options: Any,
    ) -> None:
        check_preconditioner(decay, damping, adapt)
        super().__init__(model, step_size, **options)
        self.decay = float(decay)
        self.damping = float(damping)
        self.adapt = adapt

    def _heat(self, dynamics: Any, step_size: Any) -> Any:
        moments = ScoreMoments(**dynamics) if isinstance(dynamics, dict) else dynamics
        return 0.5 * step_size * moments.preconditioner(self.damping)

    def _warn_of_chains_on_their_way(self, mean: Any, mean_square: Any) -> None:
        """Say at the end of the warm-up if the scores (C, D) of a coordinate point one way."""
        root = np.sqrt(np.asarray(mean_square, float))
        ratio = np.abs(np.asarray(mean, float)) / np.where(root > 0.0, root, 1.0)
        worst = ratio.max(axis=0)
        if not (worst > ON_THE_WAY).any():
            return
        slices = self.target.layout.slices
        site = next(
            name for name, own in slices.items() if worst[own].max(initial=0) == worst.max()
        )
        warnings.warn(
            "PSGLD holds its preconditioner after the warm-up, whose chains are still on their "
            f"way in {int((worst > ON_THE_WAY).sum())} of {len(worst)} coordinates, most in site "
            f"{site!r}: the mean of its scores is {worst.max():.2f} of their root mean square, "
            "where that of settled chains is near 0. Steep slopes on the way make the steps too "
            "short from here on, and the draws are not those of the posterior. Take a longer "
            "warm-up or a larger step size, or start nearer.",
            ConvergenceWarning,
            stacklevel=2,
        )


class SGHMCShell(StochasticGradientShell):
    """Stochastic gradient Hamiltonian Monte Carlo: momentum, friction and the noise to it.

    Each package's ``SGHMC`` has the whole text.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | Schedule,
        *,
        friction: float = 1.0,
        mass: Any = 1.0,
        num_steps: int = 1,
        **options: Any,
    ) -> None:
        check_number("friction", friction)
        check_count("num_steps", num_steps)
        super().__init__(model, step_size, **options)
        self.friction = float(friction)
        self.mass = mass
        self.num_steps = int(num_steps)

    def _mass(self) -> Any:
        """The diagonal of M (D,)."""
        return self.target.placed(diagonal_of_mass(self.mass, self.target.layout.shapes))

    def _heat(self, dynamics: Any, step_size: Any) -> Any:
        # Of what friction takes out of the momentum in a step and its noise puts in.
        # A step keeps exp(-2 friction step_size) of the momentum's variance and puts the rest in.
        # ``math.e **`` takes arrays of both frameworks.
        forgotten = 1.0 - math.e ** (-2.0 * self.friction * step_size)
        return step_size**2 / (self._mass() * forgotten)


class Exchanges(NamedTuple):
    """What exchanges between the R replicas of C chains keep, and their rule.

    Parameters
    ----------
    variance : array (C, R)
        Variance of an energy, the mean over two minibatches, by temperature: a mean over all
        exchanges, where exchange n counts as its cube.
    number : array (C, 1)
        Exchanges so far.
    due : array (C, R - 1)
        One for the pairs of neighbours whose turn it is, zero for the others.
    tried, accepted : array (C, R - 1)
        How often each pair had its turn, and how often it was exchanged.
    """

    variance: Float[Any, "C R"]
    number: Float[Any, "C 1"]
    due: Float[Any, "C pairs"]
    tried: Float[Any, "C pairs"]
    accepted: Float[Any, "C pairs"]

    @classmethod
    def none(cls, zeros: Float[Any, "C R"], xp: Any) -> Self:
        """Before the first exchange; ``xp`` is ``torch`` or ``jax.numpy``."""
        by_pair = zeros[:, 1:]
        # Even pairs first, odd ones in turn with them: a replica is in one pair at a time.
        due = xp.cumsum(xp.ones_like(by_pair), -1) % 2.0
        return cls(zeros, zeros[:, :1], due, by_pair, by_pair)

    def after(
        self,
        first: Float[Any, "C R"],
        second: Float[Any, "C R"],
        log_uniform: Float[Any, "C pairs"],
        gaps: Float[Any, " pairs"],
        xp: Any,
    ) -> tuple[Self, Any]:
        """The same after one more exchange, and which pairs (C, R - 1) were exchanged.

        Parameters
        ----------
        first, second : array (C, R)
            Energies, negative log densities, of the replicas from two independent minibatches.
        log_uniform : array (C, R - 1)
            Logarithms of uniform numbers.
        gaps : array (R - 1,)
            Differences of the inverse temperatures of neighbours.
        xp : module
            ``torch`` or ``jax.numpy``.
        """
        energy, square = 0.5 * (first + second), (0.5 * (first - second)) ** 2
        # Exchange n counts n^3, as steps do in ScoreMoments. Half the difference of two energies
        # has the variance of their mean.
        moved = self.variance + 4.0 / (self.number + 4.0) * (square - self.variance)
        variance = xp.where(xp.isfinite(square), moved, self.variance)
        # Normal noise of variance v in the exponent has the mean exp(v / 2), which is taken off.
        noise = variance[:, :-1] + variance[:, 1:]
        log_ratio = gaps * (energy[:, :-1] - energy[:, 1:]) - 0.5 * gaps**2 * noise
        exchanged = (self.due > 0.0) & (log_uniform < log_ratio)
        following = type(self)(
            variance,
            self.number + 1.0,
            # Two replicas are one pair; of more, even and odd pairs take turns.
            self.due if self.due.shape[-1] == 1 else 1.0 - self.due,
            self.tried + self.due,
            self.accepted + exchanged * self.due,
        )
        return following, exchanged


class ReplicaExchangeSGLDShell(SGLDShell):
    """Parallel tempering: replicas of every chain at several temperatures, which change places.

    Each package's ``ReplicaExchangeSGLD`` has the whole text.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float | Schedule,
        temperatures: Sequence[float],
        *,
        num_steps: int = 10,
        **options: Any,
    ) -> None:
        self.temperatures = check_temperatures(temperatures)
        check_count("num_steps", num_steps)
        super().__init__(model, step_size, **options)
        self.num_steps = int(num_steps)

    def _temperature(self, step: Any) -> Any:
        return np.array(self.temperatures)[:, None]

    @property
    def _gaps(self) -> Float[np.ndarray, " pairs"]:
        return -np.diff(1.0 / np.array(self.temperatures))

    def exchange_rates(self, state: Any) -> Float[np.ndarray, "C pairs"]:
        """Share of exchanges that took place, by chain and pair of neighbouring temperatures.

        Parameters
        ----------
        state : KernelState
            Such as ``mcmc.last_state`` in NumPyro, ``kernel.state`` in Pyro.

        Returns
        -------
        array (C, R - 1)
            NaN for pairs whose turn has not come.
        """
        tried, accepted = (as_float64(state.replicas[name]) for name in ("tried", "accepted"))
        return np.where(tried > 0, accepted / np.maximum(tried, 1.0), np.nan)
