"""``warm_chains``: NumPyro's NUTS in the coordinates of a start, a fit or draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.reparam import NeuTraReparam

from numpyro_ext.density import LogDensity
from numpyro_ext.density.batches import place
from numpyro_ext.density.handlers import alone, with_own_determinants
from numpyro_ext.draws import check_key
from numpyro_ext.fit import seed_of, ways_of
from numpyro_ext.guides.flat_density import check_has_flat_density, check_same_layout
from numpyro_ext.sharding import entry
from numpyro_ext.start import GIVEN, is_given, is_guide, piece_of, started, without_engine
from ppl_ext.arguments import columns_as_arrays
from ppl_ext.fit import warm
from ppl_ext.fit.warm import WARMUP
from ppl_ext.start.given import check_start
from ppl_ext.start.search import InPieces
from ppl_ext.start.start import Start
from ppl_ext.target.missing_rows import UNOBSERVED
from ppl_ext.target.noncentred import Noncentred

#: Mean acceptance for which the step size is adapted.
ACCEPTANCE = 0.6


@entry
def warm_chains(
    rng_key: Array,
    model: Callable[..., Any],
    start_or_fit: Any,
    *args: Any,
    num_samples: int = 1_000,
    num_chains: int = 4,
    num_warmup: int = WARMUP,
    target_accept_prob: float = ACCEPTANCE,
    progress_bar: bool = True,
    **kwargs: Any,
) -> MCMC:
    """NUTS in the coordinates of what is known of the posterior; chains side by side.

    Chains in known coordinates need neither a long warm-up nor long trajectories. The metric is
    that of the start, the fit or the draws, and stays as it is; the first transitions adapt the
    step size alone. The chains leave the posterior exactly as it is, however wrong the start.

    Parameters
    ----------
    rng_key : array
        JAX random key.
    model : callable
        NumPyro program, which evaluates all rows.
    start_or_fit : Start, Fit, or another fit
        What is known of the posterior:

        - a :class:`Start` of :func:`find_start`, or "search" to have one found;
        - a :class:`Fit`, whose chains give the metric; where it was fitted with sites non-centred,
          so do the chains move, and draws are of the sites as written as well;
        - draws, a mapping of every latent site to values (draws, ...), or what gives them by
          ``get_samples()``, such as a run of the host's ``MCMC``, or of the pair (engine, result);
        - a pair (guide, params) of a guide and its parameters, as ``SVI`` has fitted them. Of a
          Normal its covariance counts, of a mixture the mean covariance of its components, and a
          flow carries the chains into its own coordinates (by the host's ``NeuTraReparam``).

        Beyond 600 dimensions, and of few draws, variances alone.
    *args, **kwargs
        The model's arguments, with all rows. They may be newer than the start.
    num_samples : int
        Draws of each chain.
    num_chains : int
    num_warmup : int
        Transitions before these, which adapt the step size. Default: 150.
    target_accept_prob : float
        Mean acceptance for which the step size is adapted. Default: 0.6, with which a trajectory of
        NUTS through a Normal has three steps; with the host's 0.8 it often has seven.
    progress_bar : bool

    Returns
    -------
    numpyro.infer.MCMC
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> start = nx.find_start(jax.random.key(0), model, y)
    >>> mcmc = nx.warm_chains(jax.random.key(1), model, start, y, num_samples=200)
    >>> draws = mcmc.get_samples()
    >>> print(f"{draws['mean'].mean():.0f} {draws['mean'].std():.1f}")
    2 0.5
    """
    warm.check_options(
        num_samples, num_chains, num_warmup, target_accept_prob, progress_bar=progress_bar
    )
    check_key(rng_key, "warm_chains")
    args, kwargs = columns_as_arrays(args, kwargs, place, model)
    keys = random.split(rng_key, 3)
    generator = np.random.default_rng(np.asarray(random.bits(keys[0], (4,))))
    target, start = _meet(model, start_or_fit, args, kwargs, keys[1], generator)
    data = target.bind(*args, **kwargs)
    evaluate = InPieces(piece_of(target, data, None))
    points = warm.first_points(start, num_chains, evaluate, generator)
    split = target.layout.split(jnp.asarray(points, target.dtype))
    covariance = jnp.asarray(warm.covariance_of(start), target.dtype)
    # Blocks are in the order of the names in their key; by themselves names would be sorted.
    names = target.layout.names
    missing = any(name.endswith(UNOBSERVED) for name in names)
    program = alone(target.model) if missing else target.model
    if target.bound.handlers_change_jacobians(data):
        program = with_own_determinants(program)
    kernel = NUTS(
        program,
        inverse_mass_matrix={names: covariance},
        dense_mass=[names] if covariance.ndim == 2 else [],
        # The coordinates are known already. An adaptation would put an estimate from few draws in
        # their place.
        adapt_mass_matrix=False,
        target_accept_prob=target_accept_prob,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=progress_bar,
    )
    # With one chain the host expects values without an axis of chains.
    first = {name: value if num_chains > 1 else value[0] for name, value in split.items()}
    fields = ("num_steps", "accept_prob")
    mcmc.run(keys[2], *args, init_params=first, extra_fields=fields, **kwargs)
    drawn = mcmc.get_samples(group_by_chain=True)
    warm.warn_unless_at_rest({name: drawn[name] for name in names}, stacklevel=2)
    return mcmc


def _meet(
    model: Callable[..., Any],
    source: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rng_key: Array,
    generator: np.random.Generator,
) -> tuple[LogDensity, Start]:
    """The program that chains run on, and what is known of its posterior."""
    check_start(source, is_given, GIVEN)
    ways = ways_of(model, args, kwargs, seed_of(rng_key), generator, engine="warm_chains")
    target, chosen = warm.met(ways, source)
    if chosen is not None:
        own = chosen.own
        if isinstance(own.model, Noncentred) and own.model.takes_data:
            # The host's kernel, and what reads its draws, run it with the model's arguments alone.
            program = own.model.holding(chosen.data.kwargs)
            own = LogDensity(program, rng_key, args, kwargs, check=False, engine="warm_chains")
        return own, warm.of_fit(source)
    if (transport := _transport(source, target)) is not None:
        moved = transport.reparam(model)
        own = LogDensity(moved, rng_key, args, kwargs, check=False, engine="warm_chains")
        return own, warm.standard(own.dim)
    found = started(target, rng_key, target.bind(*args, **kwargs), without_engine(source))
    return target, warm.known(found)


def _transport(source: Any, target: LogDensity) -> NeuTraReparam | None:
    """What carries chains into the coordinates of a flow; None of anything else."""
    guide = source[0] if is_guide(source) else None
    if not isinstance(guide, AutoContinuous) or guide.prototype_trace is None:
        return None
    if getattr(check_has_flat_density(guide), "covariance_structure", None) is not None:
        return None
    check_same_layout(guide, target.layout)
    try:
        return NeuTraReparam(guide, getattr(source[1], "params", source[1]))
    except ValueError:
        return None
