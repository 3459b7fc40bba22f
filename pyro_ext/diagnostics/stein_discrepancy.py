"""Kernelised Stein discrepancy between a fit and its target, see
:mod:`ppl_ext.diagnostics.stein_discrepancy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.diagnostics.fit import PASS_ALL_ROWS, check_temperature, chunk_sizes
from ppl_ext.diagnostics.stein_discrepancy import (
    BLOCK,
    KSD_SAMPLES,
    SteinDiscrepancy,
    check_no_target,
    check_num_samples,
    check_options,
    check_positions,
    check_source_of_positions,
    stein_discrepancy,
)
from ppl_ext.options import check_count
from pyro_ext.density import Data, LogDensity
from pyro_ext.diagnostics.fit import (
    diagnostic_generator,
    draw,
    fitted_guide,
    target_of_engine,
    target_of_model,
)

Metric = str | Tensor | np.ndarray | None


def ksd(
    fit: Any,
    *,
    target: LogDensity | None = None,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_samples: int | None = None,
    statistic: str | None = None,
    metric: Metric = "whitened",
    scale: float = 1.0,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    block: int = BLOCK,
    seed: int | None = None,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy between a fit and its target.

    It needs draws and the target's scores at them, on the full data, but no normalising constant
    and no density of the fit, so it takes particles and guides alike. Zero means that the two
    agree.

    Parameters
    ----------
    fit
        An engine with particles, which are taken as they are; an engine that fits a guide; an
        autoguide fitted by Pyro's ``SVI``, with ``model`` and ``args``; or flat unconstrained
        positions (P, D), with ``target`` or ``model``, and ``args``.
    target : LogDensity, optional
        Target of positions that are given.
    model : callable, optional
        Model of an autoguide or of positions; not with an engine.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        that it saw last, which must hold all rows.
    num_samples : int, optional
        Draws of a guide. Default: 1000. Particles and positions are not drawn.
    statistic : {"U", "V"}, optional
        "V" is the discrepancy of the P points themselves, with every pair of them; "U" leaves
        out the pairs of a point with itself and estimates the squared discrepancy of the
        distribution that independent draws come from without bias. Default: "U" for a guide,
        "V" for particles and positions.
    metric : "whitened", tensor (D,) or None
        Scales of the coordinates: positions are divided by them and scores multiplied, as if the
        model were written in these units. "whitened" takes the standard deviations of the
        draws, a tensor gives the scales, and None leaves the coordinates as they are. See the
        notes.
    scale : float
        Length c of the kernel, in units of the scaled coordinates.
    likelihood_temperature : float, optional
        The log likelihood is divided by this. Default: the temperature of the target.
    draw_chunk : int, optional
        Scores of at most this many draws are evaluated at once. Default: 100, fewer in very high
        dimension.
    block : int
        Pairs are evaluated in blocks of this many rows and columns.
    seed : int, optional
        Seed of the draws of a guide, which come from a generator of their own. Default: 0.

    Returns
    -------
    SteinDiscrepancy
        ``value``, ``squared``, ``statistic`` and ``num_samples``.

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
    several fits of one target, give all of them the same* ``metric``: a tensor of posterior
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
    `arXiv:1602.03253 <https://arxiv.org/abs/1602.03253>`_.
    """
    positions, target, data, natural = _points(
        fit, target, model, args, kwargs, num_samples, draw_chunk, seed
    )
    statistic = natural if statistic is None else statistic
    # Before the scores, which may take long.
    check_options(statistic, metric, scale, block, len(positions), target.dim)
    temperature = check_temperature(target.likelihood_temperature, likelihood_temperature)
    sizes = chunk_sizes(len(positions), target.dim, draw_chunk)
    scores = torch.cat([_score(target, data, part, temperature) for part in positions.split(sizes)])
    return stein_discrepancy(
        positions, scores, statistic=statistic, metric=metric, scale=scale, block=block
    )


def _score(
    target: LogDensity, data: Data, positions: Float[Tensor, "P D"], temperature: float
) -> Float[Tensor, "P D"]:
    if temperature == target.likelihood_temperature:
        return target.full_score(positions, data).score
    return target.full_score_parts(positions, data).score(temperature).score


def _points(
    fit: Any,
    target: LogDensity | None,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    num_samples: int | None,
    draw_chunk: int | None,
    seed: int | None,
) -> tuple[Tensor, LogDensity, Data, str]:
    """Flat points, their target and data, and the statistic that suits them."""
    if isinstance(fit, (Tensor, np.ndarray)):
        check_num_samples(num_samples, len(fit))
        check_source_of_positions(target, model)
        if target is None:
            assert model is not None
            target, data = target_of_model(model, args, kwargs)
        else:
            data = target.bind(*(args or ()), **dict(kwargs or {}))
            target.require_all_rows(data, PASS_ALL_ROWS)
        positions = torch.as_tensor(fit, dtype=target.dtype, device=target.device).detach()
        check_positions(tuple(positions.shape), target.dim)
        return positions, target, data, "V"
    check_no_target(target, fit)
    if hasattr(fit, "target") and hasattr(fit, "particles"):
        target, data = target_of_engine(fit, model, args, kwargs)
        positions = fit.particles
        check_num_samples(num_samples, len(positions))
        return positions, target, data, "V"
    fitted = fitted_guide(fit, model, args, kwargs)
    num_samples = KSD_SAMPLES if num_samples is None else num_samples
    check_count("num_samples", num_samples)
    generator = diagnostic_generator(seed)
    sizes = chunk_sizes(num_samples, fitted.target.dim, draw_chunk)
    positions = torch.cat([draw(fitted, generator, size) for size in sizes])
    return positions, fitted.target, fitted.data, "U"
