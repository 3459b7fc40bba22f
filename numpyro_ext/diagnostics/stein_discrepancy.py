"""Kernelised Stein discrepancy between a fit and its target, see
:mod:`ppl_ext.diagnostics.stein_discrepancy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jax import Array

from numpyro_ext.density import LogDensity
from numpyro_ext.density.batches import place
from numpyro_ext.diagnostics.fit import (
    fitted_guide,
    state_of_engine,
    target_of_model,
)
from numpyro_ext.engine import Engine
from numpyro_ext.sharding import entry
from ppl_ext.batches.passes import rows_of_loader
from ppl_ext.diagnostics.stein_discrepancy import (
    BLOCK,
    Options,
    Points,
    SteinDiscrepancy,
    discrepancy_of,
)
from ppl_ext.errors import ArgumentError

Metric = str | Array | np.ndarray | None


@entry
def ksd(
    fit: Any,
    state: Any = None,
    *,
    target: LogDensity | None = None,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    num_samples: int | None = None,
    statistic: str | None = None,
    metric: Metric = "whitened",
    scale: float = 1.0,
    null: str | None = None,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    block: int = BLOCK,
    rng_key: Array | None = None,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy between a fit and its target.

    It needs draws and the target's scores at them, on the full data, but no normalising constant
    and no density of the fit, so it takes particles and guides alike. Zero means that the two
    agree.

    Parameters
    ----------
    fit
        An engine with particles, which are taken as they are; an engine that fits a guide; an
        autoguide fitted by NumPyro's ``SVI``, with ``model`` and ``args``; or flat unconstrained
        positions (P, D), with ``target`` or ``model``, and ``args``.
    state
        State of the engine, or the result of its run; or the parameters of the autoguide as
        ``SVI.get_params`` gives them, or the result of ``SVI.run``. Not with positions.
    target : LogDensity, optional
        Target of positions that are given.
    model : callable, optional
        Model of an autoguide or of positions; not with an engine.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        of a result's run, or that the engine saw last, which must hold all rows.
    batches : iterable, optional
        All rows in place of ``args``, as batches of a loader that is passed over again and again.
    num_samples : int, optional
        Draws of a guide. Default: 1000. Particles and positions are not drawn.
    statistic : {"U", "V"}, optional
        "V" is the discrepancy of the P points themselves, with every pair of them; "U" leaves
        out the pairs of a point with itself and estimates the squared discrepancy of the
        distribution that independent draws come from without bias. Default: "U" for a guide,
        "V" for particles and positions.
    metric : "whitened", array (D,) or None
        Scales of the coordinates: positions are divided by them and scores multiplied, as if the
        model were written in these units. "whitened" takes the standard deviations of the
        draws, an array gives the scales, and None leaves the coordinates as they are. See the
        notes.
    scale : float
        Length c of the kernel, in units of the scaled coordinates.
    likelihood_temperature : float, optional
        The log likelihood is divided by this. Default: the temperature of the target.
    draw_chunk : int, optional
        Scores of at most this many draws are evaluated at once. Default: 100, fewer in very high
        dimension.
    null : {"independent", "chain"}, optional
        Gives a p-value as well, by a wild bootstrap: signs that are drawn at random for
        independent draws, and that stay the same for as long as neighbours are alike for the
        draws of a Markov chain, in its order. It costs no scores, and P^2 more products for each
        of 500 resamples. Particles are neither, so an engine's have no p-value.
    block : int
        Pairs are evaluated in blocks of this many rows and columns.
    rng_key : array, optional
        Key of the draws of a guide. Default: one derived from the engine's state, so that every
        call gives the same draws; ``jax.random.key(0)`` for an autoguide.

    Returns
    -------
    SteinDiscrepancy
        ``value``, ``squared``, ``statistic``, ``num_samples`` and, with ``null``, ``p_value``.

    Raises
    ------
    ArgumentError
        An option is out of range, the arguments hold only some rows of a plate, a score is not
        finite, or a coordinate does not vary and ``metric="whitened"``.

    Notes
    -----
    Without a metric the value has units of length^(-3/2). A kernel of length 1 then sees little
    of draws that spread over 0.03: in a Normal of that scale, with 1000 draws, the noise of the
    mean score hides a standard deviation that is off by a quarter, which in units of the draws
    is plain. So the default is "whitened", which has no units and does not change when a
    coordinate is rescaled. But then each fit has a kernel of its own, and a shift counts in
    units of the fit's spread, so that a fit that is far too narrow hides some of it. *To compare
    several fits of one target, give all of them the same* ``metric``: an array of posterior
    standard deviations, from the fit that is trusted most, or None.

    The V-statistic of P independent draws of the target itself is not zero but about
    (|s|^2/c + D/c^3) / P on average, squared. As that grows with the scores, which are small for
    draws that are too narrow, it can fall when draws shrink, as long as P is small beside D. The
    U-statistic has no such term. Compare V-statistics at equal P.

    A discrepancy of scores is nearly blind to the weights of modes that lie far apart.

    References
    ----------
    Gorham and Mackey (2017), Measuring sample quality with kernels, Proposition 2 and Theorem 8,
    `arXiv:1703.01717 <https://arxiv.org/abs/1703.01717>`_. Liu, Lee and Jordan (2016), A kernelized
    Stein discrepancy for goodness-of-fit tests (U- and V-statistic),
    `arXiv:1602.03253 <https://arxiv.org/abs/1602.03253>`_. Chwialkowski, Strathmann and Gretton
    (2016), A kernel test of goodness of fit (the wild bootstrap),
    `arXiv:1602.02964 <https://arxiv.org/abs/1602.02964>`_.

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
    >>> target = nx.LogDensity(model, jax.random.key(0), (y,))
    >>> right = 2.0 + 0.5 * jax.random.normal(jax.random.key(1), (500, 1))
    >>> shifted = nx.ksd(right + 1.0, target=target, args=(y,))
    >>> print(nx.ksd(right, target=target, args=(y,)).value < shifted.value)
    True
    """
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, place)
    if isinstance(fit, (Array, np.ndarray)) and state is not None:
        raise ArgumentError(
            f"Expected no state with positions, found {type(state).__name__}. Pass target=... "
            "or model=..., and args=(...)."
        )
    if isinstance(fit, Engine):
        fit, state = fit.of_run(state)
    points = Points(
        lambda given: isinstance(given, (Array, np.ndarray)),
        lambda given, at: np.asarray(given, at.dtype),
        lambda num: fit.get_samples(state_of_engine(fit, state), rng_key, num),
        lambda: fit.particles(state_of_engine(fit, state)),
        lambda: fitted_guide(fit, state, model, args, kwargs, rng_key, passes),
        target_of_model,
    )
    of_fit, how = (model, args, kwargs, passes), (likelihood_temperature, draw_chunk)
    options = Options(statistic, metric, scale, null, block)
    return discrepancy_of(fit, points, target, of_fit, num_samples, how, options)
