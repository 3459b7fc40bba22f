"""The gradient solver's steps for diagonal guides, where touching the vectors is what costs.

Vectors of a network's length are read and written once an iteration, and updated in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions.transforms import ExpTransform

from pyro_ext.guides.normal import DiagonalNormalDensity, sum_draws
from pyro_ext.optim import AdamStep, EngineOptimizer, PlannedSteps
from pyro_ext.pieces import of_vector, side_by_side

Draws = Sequence[tuple[Float[Tensor, "S D"], Float[Tensor, "S D"]]]


class _Piece(NamedTuple):
    """Coordinates of a diagonal guide that take all their steps before others do.

    Parameters
    ----------
    where : slice
        Of the flat vector.
    loc, unconstrained : tuple of tensors (n,)
        Mean and unconstrained scale, each with its first and second moment in Adam.
    steps : list of AdamStep
    """

    where: slice
    loc: tuple[Tensor, Tensor, Tensor]
    unconstrained: tuple[Tensor, Tensor, Tensor]
    steps: list[AdamStep]


def steps_by_part(
    density: DiagonalNormalDensity,
    optimizer: EngineOptimizer,
    draws: Draws,
    weight: float,
    planned: PlannedSteps,
    steps: int,
) -> tuple[float, float]:
    """All inner steps of one piece of a diagonal guide after another.

    The objective is a sum over coordinates and so are the steps of Adam, so that a piece can take
    all its steps while it is in the processor's cache; every vector is read and written once an
    iteration, and what is computed in between is never long.

    Parameters
    ----------
    density : DiagonalNormalDensity
    optimizer : EngineOptimizer
        Of torch's plain Adam alone.
    draws : sequence of (tensor (S, D), tensor (S, D))
        Draws and their scores: the present ones, then the reused ones.
    weight : float
        Proximal weight.
    planned : PlannedSteps
        What the optimizer will do.
    steps : int
        Inner steps.

    Returns
    -------
    float, float
        The loss, which is the mean of |grad log q - score|^2 over the present draws, and the mean
        of log q over these, both before the steps.
    """
    found = []
    for part in optimizer.parts:
        where = slice(0, density.dim) if part.where is None else part.where
        moments = optimizer.adam_moments(part)
        taken = [optimizer.adam_step(part, planned, number) for number in range(steps)]
        named = [
            (part.tensors[name].detach(), *moments[name]) for name in ("loc", "scale_unconstrained")
        ]
        for piece in of_vector(draws[0][0], where.stop - where.start):
            loc, unconstrained = (tuple(each[piece] for each in tensors) for tensors in named)
            place = slice(where.start + piece.start, where.start + piece.stop)
            found.append(_Piece(place, loc, unconstrained, taken))  # type: ignore[arg-type]
    figures = side_by_side(lambda: _worker(density, draws, weight), found)
    optimizer.finish(planned, steps)
    loss, log_q = (math.fsum(each) for each in zip(*figures, strict=True))
    # The constant of D Normals, which pieces leave out.
    return loss, log_q - 0.5 * density.dim * math.log(2.0 * math.pi)


def _worker(
    density: DiagonalNormalDensity, draws: Draws, weight: float
) -> Callable[[_Piece], tuple[float, float]]:
    """What takes the steps of one piece; returns its share of the loss and of log q."""
    number, count = len(draws[0][0]), sum(len(theta) for theta, _ in draws)
    is_exp = isinstance(density.scale_transform, ExpTransform)
    memory: dict[int, list[Tensor]] = {}

    def space(like: Tensor) -> list[Tensor]:
        length = len(like)
        if length not in memory:
            memory.clear()
            # Pieces are of one length but for the last, so that one set of memory serves nearly
            # all.
            memory[length] = [like.new_empty(length) for _ in range(3)]
            memory[length] += [like.new_empty(count, length) for _ in range(3)]
        return memory[length]

    def take(piece: _Piece) -> tuple[float, float]:
        (loc, *loc_moments), (unconstrained, *scale_moments) = piece.loc, piece.unconstrained
        scale, slope, inverse, present, target, residual = space(loc)
        theta, score = (
            joined([each[:, piece.where] for each in kind]) for kind in zip(*draws, strict=True)
        )
        loss = log_q = 0.0
        for k, adam in enumerate(piece.steps):
            if is_exp:
                torch.exp(unconstrained, out=scale)
                slope.copy_(scale)
            else:
                _softplus(unconstrained, scale, slope)
            torch.reciprocal(scale, out=inverse)
            torch.sub(loc, theta, out=present).mul_(inverse)
            if k == 0:
                log_q = -_sum_of_logarithms(scale)
                log_q -= 0.5 * _sum_of_squares(present[:number]) / number
                present.mul_(inverse)
                # The blended target (α g_t + s) / (1 + α).
                torch.lerp(score, present, weight / (1.0 + weight), out=target)
                torch.sub(present, score, out=residual)
                loss = _sum_of_squares(residual[:number]) / number
                # The distance to the target is this share of that to the score.
                residual.mul_(inverse).mul_(2.0 / count)
            else:
                present.mul_(inverse)
                torch.sub(present, target, out=residual)
                residual.mul_(inverse).mul_(2.0 * (1.0 + weight) / count)
            # With g = (loc - theta) / scale^2: dg/dloc = 1 / scale^2, dg/dscale = -2 g / scale.
            of_scale = sum_draws(present.mul_(residual)).mul_(slope.mul_(-2.0))
            of_loc = sum_draws(residual).mul_(inverse)
            _adam(adam, (loc, of_loc, *loc_moments), (unconstrained, of_scale, *scale_moments))
        return loss, log_q

    return take


def _adam(step: AdamStep, *tensors: tuple[Tensor, ...]) -> None:
    """A step of Adam in one pass over each (parameter, gradient, first and second moment)."""
    parameters, gradients, first, second = (list(each) for each in zip(*tensors, strict=True))
    # What torch.optim.Adam(fused=True) calls for tensors that it has looked at first, which takes
    # longer than the step of a piece.
    torch._fused_adam_(
        parameters,
        gradients,
        first,
        second,
        [],
        [step.number] * len(parameters),
        lr=step.rate,
        beta1=step.betas[0],
        beta2=step.betas[1],
        weight_decay=0.0,
        eps=step.epsilon,
        amsgrad=False,
        maximize=False,
    )


def _softplus(x: Tensor, value: Tensor, slope: Tensor) -> None:
    """log(1 + exp(x)) and its derivative, written to tensors that are there."""
    torch.sigmoid(x, out=slope)
    if float(x.amax()) <= 0.0:
        # One transcendental function instead of two; above zero it would lose digits.
        torch.neg(slope, out=value).log1p_().neg_()
    else:
        value.copy_(torch.nn.functional.softplus(x))


def _sum_of_squares(rows: Tensor) -> float:
    return math.fsum(float(torch.dot(row, row)) for row in rows)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors end to end; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _sum_of_logarithms(values: Tensor) -> float:
    """Sum of the logarithms of positive numbers (n,), of products of four, which is faster."""
    if quarter := len(values) // 4:
        first, second, third, fourth = values[: 4 * quarter].chunk(4)
        products = (first * second).mul_(third).mul_(fourth)
        low, high = (float(bound) for bound in products.aminmax())
        # Products of four may leave the range of single precision, whose sum of logarithms would
        # not.
        if 1e-30 < low and high < math.inf:
            rest = values[4 * quarter :]
            return float(products.log_().sum()) + float(rest.log().sum())
    return float(values.log().sum())
