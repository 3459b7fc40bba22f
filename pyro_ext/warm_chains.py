"""``warm_chains``: Hamiltonian chains in the coordinates of a start, a fit or draws."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from pyro.infer import MCMC as HostMCMC
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from ppl_ext.arguments import columns_as_arrays, entry
from ppl_ext.fit import warm
from ppl_ext.fit.warm import WARMUP, Tuned
from ppl_ext.start.given import check_start
from ppl_ext.start.search import Piece
from ppl_ext.start.start import Start
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.fit import ways_of
from pyro_ext.guides.flat_density import check_has_flat_density, check_same_layout
from pyro_ext.sgmcmc import MCMC
from pyro_ext.start import GUIDE_FORM, is_guide, piece_of, started

#: Mean acceptance for which the step size is adapted.
ACCEPTANCE = 0.8


@entry
def warm_chains(
    model: Callable[..., Any],
    start_or_fit: Any,
    *args: Any,
    seed: int = 0,
    num_samples: int = 1_000,
    num_chains: int = 4,
    num_warmup: int = WARMUP,
    target_accept_prob: float = ACCEPTANCE,
    progress_bar: bool = True,
    **kwargs: Any,
) -> HostMCMC:
    """Hamiltonian chains in the coordinates of what is known of the posterior, side by side.

    Pyro's own NUTS takes one chain after another, operation by operation. Here all chains take a
    step in one evaluation, and trajectories have random lengths about a quarter of a period.

    Chains in known coordinates need neither a long warm-up nor long trajectories. The metric is
    that of the start, the fit or the draws, and stays as it is; the first transitions adapt the
    step size alone. The chains leave the posterior exactly as it is, however wrong the start.

    Parameters
    ----------
    seed : int
        Seed of all random numbers.
    model : callable
        Pyro program, which evaluates all rows.
    start_or_fit : Start, Fit, or another fit
        What is known of the posterior:

        - a :class:`Start` of :func:`find_start`, or "search" to have one found;
        - a :class:`Fit`, whose chains give the metric; where it was fitted with sites non-centred,
          so do the chains move, and draws are of the sites as written as well;
        - draws, a mapping of every latent site to values (draws, ...), or what gives them by
          ``get_samples()``, such as a run of the host's ``MCMC`` or an engine that has run;
        - a guide that the host's ``SVI`` or an engine has fitted. Of a Normal its covariance
          counts, of a mixture the mean covariance of its components, and a flow carries the chains
          into its own coordinates (its ``get_transform``, as in the host's ``NeuTraReparam``).

        Beyond 600 dimensions, and of few draws, variances alone.
    *args, **kwargs
        The model's arguments, with all rows. They may be newer than the start.
    num_samples : int
        Draws of each chain.
    num_chains : int
    num_warmup : int
        Transitions before these, which adapt the step size. Default: 150.
    target_accept_prob : float
        Mean acceptance for which the step size is adapted. Default: 0.8.
    progress_bar : bool

    Returns
    -------
    pyro_ext.MCMC, which is a pyro.infer.MCMC
        After ``run``. Chains do not go from mode to mode. Where a fit has labels that can be
        exchanged, all begin with these in order.

    Warns
    -----
    DoubtfulFitWarning
        The chains have not come to rest: split R-hat is above 1.05, or draws are not finite.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted.
    ArgumentError
        The start is of another model, has no finite density near it, or is no start; the model
        subsamples; or an option has no meaning.

    References
    ----------
    A flow's coordinates: M. Hoffman and others, "NeuTra-lizing bad geometry in Hamiltonian Monte
    Carlo using neural transport" (2019).

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> start = px.find_start(model, y)
    >>> mcmc = px.warm_chains(model, start, y, num_samples=200)
    >>> draws = mcmc.get_samples()
    >>> print(f"{draws['mean'].mean():.0f} {draws['mean'].std():.1f}")
    2 0.5
    """
    warm.check_options(
        num_samples, num_chains, num_warmup, target_accept_prob, progress_bar=progress_bar
    )
    kernel = WarmHMC(model, start_or_fit, target_accept_prob=target_accept_prob, seed=seed)
    mcmc = MCMC(
        kernel, num_samples, num_warmup, num_chains=num_chains, disable_progbar=not progress_bar
    )
    args, kwargs = columns_as_arrays(args, kwargs, placing(None), model)
    mcmc.run(*args, **kwargs)
    drawn = mcmc.get_samples(group_by_chain=True)
    found = {name: drawn[name].cpu().numpy() for name in drawn}
    warm.warn_unless_at_rest(found, stacklevel=2)
    return mcmc


class WarmState(NamedTuple):
    """Where chains are.

    Parameters
    ----------
    z : tensor (C, D)
    """

    z: Float[Tensor, "C D"]


class WarmHMC(MCMCKernel):
    """Hamiltonian transitions in fixed coordinates, for :class:`~pyro_ext.MCMC`.

    Parameters
    ----------
    model : callable
        Pyro program.
    start_or_fit
        See :func:`warm_chains`.
    target_accept_prob : float
    seed : int
    """

    #: Draws come out in the supports of their sites: there is nothing for ``MCMC`` to transform.
    transforms: Mapping[str, Any] = {}

    def __init__(
        self,
        model: Callable[..., Any],
        start_or_fit: Any,
        *,
        target_accept_prob: float = ACCEPTANCE,
        seed: int = 0,
    ) -> None:
        self.model, self._source = model, start_or_fit
        self._acceptance, self._seed = target_accept_prob, seed
        #: Evaluations of the score so far, one for each position.
        self.evaluations = 0

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """As :meth:`setup_chains`, for one chain."""
        self.setup_chains(1, warmup_steps, *args, **kwargs)

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Check the model and the start with these arguments, and start the chains.

        Raises
        ------
        ModelCheckError, ArgumentError
            See :func:`warm_chains`.
        """
        generator = np.random.default_rng(self._seed)
        met = _Met.of(self.model, self._source, args, kwargs, self._seed, generator)
        self.target, self.values = met.target, met.values

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            self.evaluations += len(z)
            value, score = met.piece(z, 0)
            return np.asarray(value, np.float64), np.asarray(score, np.float64)

        points = warm.first_points(met.start, num_chains, evaluate, generator)
        covariance = warm.covariance_of(met.start)
        factor = np.sqrt(covariance) if covariance.ndim == 1 else np.linalg.cholesky(covariance)
        self._chains = Tuned(evaluate, factor, points, warmup_steps, self._acceptance, generator)
        self._warmup = warmup_steps
        self._figures: dict[str, list[Any]] = {"acceptance_rate": [], "diverging": []}

    def draw(self) -> WarmState:
        """All chains one transition on."""
        chance, divergent = self._chains()
        # Figures of the warm-up say nothing of the draws.
        if self._chains.transitions > self._warmup:
            self._figures["acceptance_rate"].append(chance)
            self._figures["diverging"].append(divergent)
        return WarmState(torch.as_tensor(self._chains.chains.positions, dtype=self.target.dtype))

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The first chain's position, as draws are: latent sites in their supports."""
        first = torch.as_tensor(self._chains.chains.positions[:1], dtype=self.target.dtype)
        return {name: value[0] for name, value in self.values(first).items()}

    @initial_params.setter
    def initial_params(self, params: Any) -> None:
        """Chains start where the start says."""

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The next draw of the first chain: latent sites in their supports."""
        self.draw()
        return self.initial_params

    def diagnostics(self, chain: int = 0) -> dict[str, Any]:
        """Of a chain's draws: those that diverged, and probabilities of acceptance."""
        diverging = self._figures["diverging"]
        return {
            "divergences": [number for number, each in enumerate(diverging) if each[chain]],
            "acceptance_rate": [float(each[chain]) for each in self._figures["acceptance_rate"]],
        }

    def logging(self) -> OrderedDict[str, str]:
        """The step size, for the progress bar."""
        return OrderedDict([("step size", f"{self._chains.step_size:.2e}")])


class _Met(NamedTuple):
    """A program with what is known of its posterior."""

    #: The program that chains run on, or the one that a flow leads to.
    target: LogDensity
    piece: Piece
    #: Of positions: the sites as written, and those of the program that chains run on.
    values: Callable[[Tensor], dict[str, Tensor]]
    start: Start

    @classmethod
    def of(
        cls,
        model: Callable[..., Any],
        source: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seed: int,
        generator: np.random.Generator,
    ) -> _Met:
        """Of a start, a fit, draws, a guide or an engine."""
        check_start(source, is_guide, GUIDE_FORM)
        target, chosen = warm.met(ways_of(model, args, kwargs, seed, generator), source)
        data = target.bind(*args, **kwargs)
        if chosen is not None:
            own: LogDensity = chosen.own
            own_data = chosen.data

            def both(z: Tensor) -> dict[str, Tensor]:
                return {**own.constrain(z, own_data), **chosen.values(z.numpy())}

            return cls(own, piece_of(own, own_data, None), both, warm.of_fit(source))
        if (transport := _transport(source, target)) is not None:
            return cls(
                target,
                _through(transport, target, data),
                lambda u: target.constrain(transport(u).detach(), data),
                warm.standard(target.dim),
            )
        found = started(target, torch.Generator().manual_seed(seed), data, source)
        return cls(
            target,
            piece_of(target, data, None),
            lambda z: target.constrain(z, data),
            warm.known(found),
        )


def _transport(source: Any, target: LogDensity) -> Any:
    """What carries chains into the coordinates of a flow; None of anything else."""
    if not isinstance(source, AutoContinuous) or source.prototype_trace is None:
        return None
    # A Normal guide gives its covariance, by which chains are scaled. That needs no flow.
    if getattr(check_has_flat_density(source), "covariance_structure", None) is not None:
        return None
    check_same_layout(source, target.layout)
    try:
        return source.get_transform()
    except (AssertionError, AttributeError, NotImplementedError, TypeError):
        return None


def _through(transport: Any, target: LogDensity, data: Data) -> Piece:
    """Log densities and scores in the coordinates that a flow leads from."""

    def piece(positions: np.ndarray, _: int) -> tuple[Any, Any]:
        u = torch.as_tensor(positions, dtype=target.dtype).requires_grad_()
        with torch.enable_grad():
            z = transport(u)
            log_det = transport.log_abs_det_jacobian(u, z)
        found = target.full_score(z.detach(), data)
        ones = torch.ones_like(log_det)
        # By the chain rule, in one backward pass: the score at z through the flow, and the gradient
        # of its log determinant.
        (score,) = torch.autograd.grad((z, log_det), u, (found.score.detach(), ones))
        value = found.log_density(target.likelihood_temperature) + log_det
        return value.detach(), score

    return piece
