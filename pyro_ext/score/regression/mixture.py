"""Closed form for mixtures of full-covariance Normals: a search for modes, then a match of scores.

The method is told in :mod:`ppl_ext.regression.mixture`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppl_ext.regression.mixture import (
    DAMPING,
    FIRST_LOG_WEIGHT,
    GOLDEN,
    LARGEST_CHANGE,
    LARGEST_MOVE,
    LEAST_COST,
    LEAST_ROUND,
    NARROWEST,
    REACH,
    RECENT,
    ROUNDS,
    SEARCH_SHARE,
    SEARCH_STEP,
    UNKNOWN_ITERATIONS,
    UNKNOWN_SHARE,
    WEIGHT_STEP,
)
from ppl_ext.regression.overflow import LENIENCE
from pyro_ext.guides.flat_density import Parameters
from pyro_ext.guides.mixture import Components
from pyro_ext.score.overflow import Verdict, judged
from pyro_ext.score.regression.base import ClosedForm


class Start(NamedTuple):
    """How the guide started: what components that start again are like.

    ``center`` (D,) is the mean of the components' means, ``apart`` () their standard deviation
    around it and ``widths`` (2,) the logarithms of the narrowest and the widest scale.
    """

    center: Tensor
    apart: Tensor
    widths: Tensor


class MixtureRegression(NamedTuple):
    """What was seen so far.

    ``cost`` (K,) is c, ``value_square`` (K,) the mean square v and ``residual`` () the mean
    square of R. ``matching`` says whether the search is over. ``score_square`` (K,) is the
    mean square of each component's whitened scores, 0 before there are any.
    """

    num_updates: int
    num_restarts: int
    cost: Tensor
    value_square: Tensor
    residual: Tensor
    start: Start
    matching: bool
    score_square: Tensor


class Step(NamedTuple):
    """Changes of the guide, in units of its components.

    ``log_weight`` (K,), ``move`` (K, D) and ``precision`` (K, D, D) are v, a and B.
    """

    log_weight: Tensor
    move: Tensor
    precision: Tensor


class Points(NamedTuple):
    """The guide at N points.

    Parameters
    ----------
    joint : tensor (N, K)
        Logarithm of each component's weight times density.
    standard : tensor (N, K, D)
        y = L_k^-1 (theta - m_k).
    pull : tensor (N, K, D)
        u_k = P_k (m_k - theta).
    inverse : tensor (K, D, D)
        L_k^-1.
    """

    joint: Tensor
    standard: Tensor
    pull: Tensor
    inverse: Tensor

    @property
    def share(self) -> Tensor:
        """Posterior probability r of each component at each point, (N, K)."""
        return self.joint.softmax(-1)

    @property
    def score(self) -> Tensor:
        """grad log q, (N, D)."""
        return torch.einsum("nk,nkd->nd", self.share, self.pull)


def evaluate(components: Components, theta: Tensor) -> Points:
    """The guide at theta (N, D)."""
    dim = theta.shape[-1]
    identity = torch.eye(dim, dtype=theta.dtype, device=theta.device)
    inverse = torch.linalg.solve_triangular(components.scale_tril, identity, upper=False)
    standard = torch.einsum("kij,nkj->nki", inverse, theta.unsqueeze(1) - components.loc)
    diagonal = components.scale_tril.diagonal(dim1=-2, dim2=-1)
    joint = components.logits.log_softmax(-1) - diagonal.log().sum(-1)
    joint = joint - 0.5 * (standard.square().sum(-1) + dim * math.log(2.0 * math.pi))
    return Points(joint, standard, -torch.einsum("kji,nkj->nki", inverse, standard), inverse)


class MixtureForm(ClosedForm[MixtureRegression]):
    """The closed form for ``AutoGaussianMixture`` with ``covariance="full"``.

    O(K D^2) memory and O(K D^3) operations, and with N draws an iteration (N D)^2 numbers.
    ``decay`` has no part in it.
    """

    @staticmethod
    def group(guide: Any) -> int:
        return 2 * int(guide.num_components)

    def draw(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        """Mirrored pairs of every component in turn: first all halves, then their images."""
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        shape = (num // (2 * number), number, dim)
        like = {"dtype": components.loc.dtype, "device": components.loc.device}
        noise = torch.randn(shape, generator=generator, **like)
        difference = torch.einsum("kij,pkj->pki", components.scale_tril, noise)
        both = torch.cat([components.loc + difference, components.loc - difference])
        return both.reshape(-1, dim)

    def weights(self, parameters: Parameters, num: int) -> Tensor:
        weights = self.density.components(parameters).logits.softmax(-1)
        return weights.repeat(num // len(weights)) * (len(weights) / num)

    def initial(self, parameters: Parameters) -> MixtureRegression:
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        center = components.loc.mean(0)
        square = (components.loc - center).square().sum() / (max(number - 1, 1) * dim)
        diagonal = components.scale_tril.diagonal(dim1=-2, dim2=-1)
        width = diagonal.log().mean(-1)
        start = Start(center, square.sqrt(), torch.stack([width.min(), width.max()]))
        of_components = center.new_ones(number), center.new_zeros(number)
        square = center.new_zeros(number)
        return MixtureRegression(0, 0, *of_components, center.new_ones(()), start, False, square)

    def update(
        self,
        state: MixtureRegression,
        parameters: Parameters,
        theta: Tensor,
        score: Tensor,
        total: int = 0,
        log_density: Tensor | None = None,
    ) -> tuple[MixtureRegression, Parameters]:
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        own = torch.arange(len(theta), device=theta.device) % number
        root = components.scale_tril
        progress, length = _progress(state.num_updates, total, dim)
        # Steps after a run, or in a longer one, do not search again.
        progress = max(progress, SEARCH_SHARE) if state.matching else progress
        matching = progress >= SEARCH_SHARE
        latest = torch.einsum("nji,nj->ni", root[own], score).square().sum(-1)
        latest = latest.reshape(-1, number).mean(0)
        left_out = _left_out(state._replace(matching=matching), latest)
        if left_out is not None:
            return left_out, parameters
        points = evaluate(components, theta)
        residual = torch.einsum("nji,nj->ni", root[own], score - points.score)
        late = max(progress - SEARCH_SHARE, 0.0) / (1.0 - SEARCH_SHARE)
        falling = 0.5 * (1.0 + math.cos(math.pi * late))
        if progress < SEARCH_SHARE:
            step = natural_step(points.standard, residual)
        else:
            step = matching_step(components, points, residual, state.residual)
            change = step.log_weight.clamp(-LARGEST_CHANGE, LARGEST_CHANGE)
            step = step._replace(log_weight=change)
        step = Step(*(falling * change for change in step))
        value_square = state.value_square
        if log_density is not None:
            change, value_square = _weight_change(state, components, points, log_density)
            step = step._replace(log_weight=step.log_weight + falling * change)
        updated = MixtureRegression(
            state.num_updates + 1,
            state.num_restarts,
            torch.lerp(state.cost, costs(components, points), min(4.0 / length, 1.0)),
            value_square,
            torch.lerp(state.residual, residual.square().mean(), RECENT),
            state.start,
            matching,
            _seen(state.score_square, latest),
        )
        moved = move(components, step, self.trust)
        last = SEARCH_SHARE * (total if total > 0 else UNKNOWN_ITERATIONS)
        due = not updated.matching and updated.num_updates % length == 0
        if due and updated.num_updates + length <= last:
            updated, moved = _restarted(updated, moved, points.standard)
        return updated, self.density.set_components(parameters, moved)


def _seen(before: Tensor, latest: Tensor) -> Tensor:
    """Mean squares (K,) of scores, the latest among them."""
    return torch.where(before > 0.0, torch.lerp(before, latest, RECENT), latest)


def _left_out(state: MixtureRegression, latest: Tensor) -> MixtureRegression | None:
    """The next state without the latest scores, of mean squares (K,); None if they are sound."""
    seen = state.score_square
    each = [judged(*both) for both in zip(seen.tolist(), latest.tolist(), strict=True)]
    verdict = Verdict(any(one.wild for one in each), any(one.spoilt for one in each))
    if verdict.sound:
        return None
    later = state._replace(num_updates=state.num_updates + 1)
    wild, spoilt = (seen.new_tensor(flags, dtype=torch.bool) for flags in zip(*each, strict=True))
    lenient = later._replace(score_square=torch.where(wild, LENIENCE * seen, seen))
    fresh = later._replace(
        value_square=torch.zeros_like(state.value_square),
        residual=torch.ones_like(state.residual),
        score_square=torch.where(spoilt, latest, seen),
    )
    return verdict.choose(lenient, fresh, later)


def natural_step(standard: Tensor, residual: Tensor) -> Step:
    """Natural-gradient step of every component, by its own draws.

    Parameters
    ----------
    standard : tensor (2 p K, K, D)
        Of :class:`Points`, at the draws of :meth:`MixtureForm.draw`.
    residual : tensor (2 p K, D)
        grad f at the draws, times L^T of the component that drew.
    """
    number, dim = standard.shape[1:]
    pairs = len(standard) // (2 * number)
    own = torch.einsum("pkkd->pkd", standard.reshape(-1, number, number, dim))
    both = residual.reshape(2, pairs, number, dim)
    z, e = own[:pairs], 0.5 * (both[0] - both[1])
    square = z.square().sum(-1)[..., None, None]
    outer = e.unsqueeze(-1) * z.unsqueeze(-2)
    along = (e * z).sum(-1)[..., None, None] * z.unsqueeze(-1) * z.unsqueeze(-2)
    slope = (outer + outer.mT) / square - along / square.square()
    return Step(
        standard.new_zeros(number),
        SEARCH_STEP * both.mean((0, 1)),
        -SEARCH_STEP * slope.mean(0),
    )


def matching_step(
    components: Components, points: Points, residual: Tensor, noise: Tensor | float
) -> Step:
    """The least change of the guide with which its scores at the draws are the target's.

    Parameters
    ----------
    components : Components
    points : Points
        At the N draws of :meth:`MixtureForm.draw`.
    residual : tensor (N, D)
        grad f at the draws, times L^T of the component that drew.
    noise : float
        Mean square that the residual is expected to have.
    """
    count, number, dim = points.standard.shape
    own = torch.arange(count, device=residual.device) % number
    root = components.scale_tril
    # Rows h of L_j^T L_k^-T, for the component j that drew and each component k.
    table = torch.einsum("jba,kcb->jkac", root, points.inverse)
    apart = points.pull - points.score.unsqueeze(1)
    slope = torch.einsum("nba,nkb->nka", root[own], apart)
    share = points.share
    pieces = [
        (table[own, k], slope[:, k], points.standard[:, k], share[:, k]) for k in range(number)
    ]
    size = count * dim
    gram = residual.new_zeros(count, dim, count, dim)
    for piece in pieces:
        gram += _gram(*piece)
    gram = gram.reshape(size, size)
    damping = DAMPING * gram.trace() / size + noise + torch.finfo(gram.dtype).tiny
    gram.diagonal().add_(damping)
    factor = torch.linalg.cholesky(gram)
    multiplier = torch.cholesky_solve(residual.reshape(-1, 1), factor).reshape(count, dim)
    steps = [_adjoint(*piece, multiplier) for piece in pieces]
    return Step(*(torch.stack(parts) for parts in zip(*steps, strict=True)))


def _gram(h: Tensor, q: Tensor, y: Tensor, r: Tensor) -> Tensor:
    """What one component adds to J J^T, (N, D, N, D).

    Row (n, i) of J has the entries r q_i for v, r (h_i + q_i y) for a, and for B
    -r (h_i y^T + y h_i^T + q_i (y y^T - I)) / 2.

    Parameters
    ----------
    h : tensor (N, D, D)
        Rows of L_j^T L_k^-T.
    q, y : tensors (N, D)
        L_j^T (u_k - grad log q), and the point in units of the component.
    r : tensor (N,)
        Share of the component.
    """
    dim = y.shape[-1]
    rows = torch.einsum("nac,mbc->namb", h, h)
    across = torch.einsum("nac,mc->nam", h, y)
    left = across.unsqueeze(-1)
    right = across.permute(2, 0, 1).unsqueeze(1)
    products = y @ y.T
    square = products.diagonal()
    inner = products[:, None, :, None]
    itself = torch.einsum("nac,nc->na", h, y)
    first, second = q[:, :, None, None], q[None, None]
    weights = first * second
    means = rows + second * left + first * right + weights * inner
    spread = products.square() - square.unsqueeze(-1) - square + dim
    precisions = 0.5 * (rows * inner + left * right)
    precisions += 0.5 * second * (left * inner - itself[:, :, None, None])
    precisions += 0.5 * first * (right * inner - itself[None, None])
    precisions += 0.25 * weights * spread[:, None, :, None]
    shares = (r.unsqueeze(-1) * r)[:, None, :, None]
    return shares * (weights + means + precisions)


def _adjoint(
    h: Tensor, q: Tensor, y: Tensor, r: Tensor, multiplier: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """J^T times the multiplier (N, D), for one component: its v, a and B. See ``_gram``."""
    along = r * (q * multiplier).sum(-1)
    turned = r.unsqueeze(-1) * torch.einsum("nac,na->nc", h, multiplier)
    outer = turned.T @ y
    identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    square = (along.unsqueeze(-1) * y).T @ y - along.sum() * identity
    return along.sum(), turned.sum(0) + along @ y, -0.5 * (outer + outer.T + square)


def costs(components: Components, points: Points) -> Tensor:
    """Cost c (K,) of dropping each component, by its own draws; 1 where there is no other."""
    number = len(components.logits)
    if number == 1:
        return torch.ones_like(components.logits)
    index = torch.arange(number, device=points.joint.device)
    own = index.repeat(len(points.joint) // number)
    weight = components.logits.softmax(-1)
    without = points.joint.masked_fill(index == own.unsqueeze(-1), -math.inf)
    rest = torch.log1p(-weight.clamp(max=1.0 - torch.finfo(weight.dtype).eps))
    ratio = points.joint.logsumexp(-1) - without.logsumexp(-1) + rest[own]
    return weight * ratio.reshape(-1, number).mean(0)


def move(components: Components, step: Step, trust: float) -> Components:
    """The components after a step, whose length is limited.

    Moves have at most ``LARGEST_MOVE`` units, and eigenvalues of I + B are limited to
    ``trust`` and its inverse.
    """
    length = torch.linalg.vector_norm(step.move, dim=-1, keepdim=True)
    shift = step.move / (length / LARGEST_MOVE).clamp(min=1.0)
    values, vectors = torch.linalg.eigh(step.precision)
    values = (1.0 + values).clamp(1.0 / trust, trust).unsqueeze(-2)
    factor = torch.linalg.cholesky((vectors / values) @ vectors.mT)
    root = components.scale_tril
    return Components(
        (components.logits.log_softmax(-1) + step.log_weight).log_softmax(-1),
        components.loc + torch.einsum("kij,kj->ki", root, shift),
        # A product of lower triangular factors is lower triangular.
        root @ factor,
    )


def _progress(iteration: int, total: int, dim: int) -> tuple[float, int]:
    """Share of the run that is done, and the iterations of a round."""
    horizon = total if total > 0 else UNKNOWN_ITERATIONS
    progress = min(iteration / horizon, 1.0 if total > 0 else UNKNOWN_SHARE)
    return progress, max(horizon // ROUNDS, 2 * dim + LEAST_ROUND)


def _weight_change(
    state: MixtureRegression, components: Components, points: Points, log_density: Tensor
) -> tuple[Tensor, Tensor]:
    """Change (K,) of the log weights by values of f, and the new mean squares v."""
    number = len(components.logits)
    values = (log_density - points.joint.logsumexp(-1)).reshape(-1, number).mean(0)
    values = values - components.logits.softmax(-1) @ values
    step = WEIGHT_STEP / (1.0 + WEIGHT_STEP * state.value_square)
    change = (step * values).clamp(-WEIGHT_STEP, WEIGHT_STEP)
    return change, torch.lerp(state.value_square, values.square(), RECENT)


def _restarted(
    state: MixtureRegression, components: Components, standard: Tensor
) -> tuple[MixtureRegression, Components]:
    """Start the component of least cost again, if its cost is low."""
    dim = components.loc.shape[-1]
    least = int(state.cost.argmin())
    if not state.cost[least] < LEAST_COST:
        return state, components
    start, count = state.start, state.num_restarts
    share = (count + 1) * GOLDEN % 1.0
    # The first draw in units of its component: standard normal numbers that are there.
    noise = standard[least, least]
    loc, root = components.loc.clone(), components.scale_tril.clone()
    if count % 2 == 0:
        width = (start.widths[0] + share * (start.widths[1] - start.widths[0])).exp()
        loc[least] = start.center + start.apart * noise
        root[least] = width * torch.eye(dim, dtype=root.dtype, device=root.device)
    else:
        heaviest = int(components.logits.argmax())
        loc[least] = components.loc[heaviest] + REACH * components.scale_tril[heaviest] @ noise
        root[least] = math.exp(-share * NARROWEST) * components.scale_tril[heaviest]
    square = state.score_square.clone()
    square[least] = 0.0
    state = state._replace(num_restarts=state.num_restarts + 1, score_square=square)
    # Light: it is drawn to where the rest of the guide lacks mass, and gains weight there.
    logits = components.logits.clone()
    logits[least] = -math.inf
    logits[least] = logits.logsumexp(-1) + FIRST_LOG_WEIGHT
    return state, Components(logits, loc, root)
