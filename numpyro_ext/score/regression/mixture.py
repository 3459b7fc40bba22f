"""Closed form for mixtures of full-covariance Normals: a search for modes, then a match of scores.

The method is told in :mod:`ppl_ext.regression.mixture`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jax.scipy.special import logsumexp

from numpyro_ext.draws import standard_normal
from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.guides.mixture import Components
from numpyro_ext.score.overflow import Verdict, judged
from numpyro_ext.score.regression.base import ClosedForm
from numpyro_ext.score.regression.pairs import averaged
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


class Start(NamedTuple):
    """How the guide started: what components that start again are like.

    ``center`` (D,) is the mean of the components' means, ``apart`` () their standard deviation
    around it and ``widths`` (2,) the logarithms of the narrowest and the widest scale.
    """

    center: jax.Array
    apart: jax.Array
    widths: jax.Array


class MixtureRegression(NamedTuple):
    """What was seen so far.

    ``cost`` (K,) is c, ``value_square`` (K,) the mean square v and ``residual`` () the mean
    square of R. ``num_updates`` and ``num_restarts`` are counts (). ``matching`` says whether the
    search is over. ``score_square`` (K,) is the mean square of each component's whitened scores, 0
    before there are any.
    """

    num_updates: jax.Array
    num_restarts: jax.Array
    cost: jax.Array
    value_square: jax.Array
    residual: jax.Array
    start: Start
    matching: jax.Array
    score_square: jax.Array


class Step(NamedTuple):
    """Changes of the guide, in units of its components.

    ``log_weight`` (K,), ``move`` (K, D) and ``precision`` (K, D, D) are v, a and B.
    """

    log_weight: jax.Array
    move: jax.Array
    precision: jax.Array


class Points(NamedTuple):
    """The guide at N points.

    Parameters
    ----------
    joint : array (N, K)
        Logarithm of each component's weight times density.
    standard : array (N, K, D)
        y = L_k^-1 (theta - m_k).
    pull : array (N, K, D)
        u_k = P_k (m_k - theta).
    inverse : array (K, D, D)
        L_k^-1.
    """

    joint: jax.Array
    standard: jax.Array
    pull: jax.Array
    inverse: jax.Array

    @property
    def share(self) -> jax.Array:
        """Posterior probability r of each component at each point, (N, K)."""
        return jax.nn.softmax(self.joint, -1)

    @property
    def score(self) -> jax.Array:
        """grad log q, (N, D)."""
        return jnp.einsum("nk,nkd->nd", self.share, self.pull)


def evaluate(components: Components, theta: jax.Array) -> Points:
    """The guide at theta (N, D)."""
    dim = theta.shape[-1]
    identity = jnp.eye(dim, dtype=theta.dtype)
    inverse = jax.vmap(lambda root: solve_triangular(root, identity, lower=True))(
        components.scale_tril
    )
    standard = jnp.einsum("kij,nkj->nki", inverse, theta[:, None] - components.loc)
    diagonal = jnp.diagonal(components.scale_tril, axis1=-2, axis2=-1)
    joint = jax.nn.log_softmax(components.logits) - jnp.log(diagonal).sum(-1)
    joint = joint - 0.5 * (jnp.square(standard).sum(-1) + dim * math.log(2.0 * math.pi))
    return Points(joint, standard, -jnp.einsum("kji,nkj->nki", inverse, standard), inverse)


class MixtureForm(ClosedForm[MixtureRegression]):
    """The closed form for ``AutoGaussianMixture`` with ``covariance="full"``.

    O(K D^2) memory and O(K D^3) operations, and with N draws an iteration (N D)^2 numbers.
    ``decay`` has no part in it.
    """

    @staticmethod
    def group(guide: Any) -> int:
        return 2 * int(guide.num_components)

    def draw(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        """Mirrored pairs of every component in turn: first all halves, then their images."""
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        shape = (num // (2 * number), number, dim)
        noise = standard_normal(rng_key, shape, components.loc.dtype)
        difference = jnp.einsum("kij,pkj->pki", components.scale_tril, noise)
        both = jnp.concatenate([components.loc + difference, components.loc - difference])
        return both.reshape(-1, dim)

    def weights(self, parameters: Parameters, num: int) -> jax.Array:
        weights = jax.nn.softmax(self.density.components(parameters).logits)
        return jnp.tile(weights, num // len(weights)) * (len(weights) / num)

    def initial(self, parameters: Parameters) -> MixtureRegression:
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        dtype = components.loc.dtype
        center = components.loc.mean(0)
        square = jnp.square(components.loc - center).sum() / (max(number - 1, 1) * dim)
        diagonal = jnp.diagonal(components.scale_tril, axis1=-2, axis2=-1)
        width = jnp.log(diagonal).mean(-1)
        start = Start(center, jnp.sqrt(square), jnp.stack([width.min(), width.max()]))
        # Arrays of their own each, so that the state can be donated.
        return MixtureRegression(
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            jnp.ones(number, dtype),
            jnp.zeros(number, dtype),
            jnp.ones((), dtype),
            start,
            jnp.asarray(False),
            jnp.zeros(number, dtype),
        )

    def update(
        self,
        state: MixtureRegression,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
        log_density: jax.Array | None = None,
    ) -> tuple[MixtureRegression, Parameters]:
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        dtype = theta.dtype
        points = evaluate(components, theta)
        own = jnp.arange(len(theta)) % number
        root = components.scale_tril
        residual = jnp.einsum("nji,nj->ni", root[own], score - points.score)
        latest = jnp.square(jnp.einsum("nji,nj->ni", root[own], score)).sum(-1)
        latest = latest.reshape(-1, number).mean(0)
        progress, length = _progress(state.num_updates, total, dim, dtype)
        # Steps after a run, or in a longer one, do not search again.
        least = jnp.where(state.matching, SEARCH_SHARE, 0.0).astype(dtype)
        progress = jnp.maximum(progress, least)
        searching = progress < SEARCH_SHARE
        late = jnp.maximum(progress - SEARCH_SHARE, 0.0) / (1.0 - SEARCH_SHARE)
        falling = 0.5 * (1.0 + jnp.cos(jnp.pi * late))

        def search() -> Step:
            return natural_step(points.standard, residual)

        def match() -> Step:
            step = matching_step(components, points, residual, state.residual)
            change = jnp.clip(step.log_weight, -LARGEST_CHANGE, LARGEST_CHANGE)
            return step._replace(log_weight=change)

        step: Step = jax.tree.map(
            lambda change: falling * change, lax.cond(searching, search, match)
        )
        value_square = state.value_square
        if log_density is not None:
            change, value_square = _weight_change(state, components, points, log_density)
            step = step._replace(log_weight=step.log_weight + falling * change)
        cost = costs(components, points)
        rate = jnp.minimum(4.0 / length, 1.0).astype(dtype)
        updated = MixtureRegression(
            state.num_updates + 1,
            state.num_restarts,
            averaged(state.cost, cost, rate),
            value_square,
            averaged(state.residual, jnp.square(residual).mean(), jnp.asarray(RECENT, dtype)),
            state.start,
            ~searching,
            _seen(state.score_square, latest),
        )
        moved = move(components, step, self.trust)
        last = SEARCH_SHARE * jnp.where(total > 0, total, UNKNOWN_ITERATIONS)
        due = searching & (updated.num_updates % length == 0)
        due &= updated.num_updates + length <= last
        updated, moved = _restarted(updated, moved, points.standard, due)
        each = judged(state.score_square, latest)
        verdict = Verdict(each.wild.any(), each.spoilt.any())
        later = state._replace(num_updates=state.num_updates + 1, matching=~searching)
        lenient = later._replace(
            score_square=jnp.where(each.wild, LENIENCE, 1.0) * state.score_square
        )
        fresh = later._replace(
            value_square=jnp.zeros_like(state.value_square),
            residual=jnp.ones_like(state.residual),
            score_square=jnp.where(each.spoilt, latest, state.score_square),
        )
        updated = verdict.choose(lenient, fresh, updated)
        moved = verdict.choose(components, components, moved)
        return updated, self.density.set_components(parameters, moved)


def _seen(before: jax.Array, latest: jax.Array) -> jax.Array:
    """Mean squares (K,) of scores, the latest among them."""
    found: jax.Array = averaged(before, latest, jnp.asarray(RECENT, latest.dtype))
    return jnp.where(before > 0.0, found, latest)


def natural_step(standard: jax.Array, residual: jax.Array) -> Step:
    """Natural-gradient step of every component, by its own draws.

    Parameters
    ----------
    standard : array (2 p K, K, D)
        Of :class:`Points`, at the draws of :meth:`MixtureForm.draw`.
    residual : array (2 p K, D)
        grad f at the draws, times L^T of the component that drew.
    """
    number, dim = standard.shape[1:]
    pairs = len(standard) // (2 * number)
    own = jnp.einsum("pkkd->pkd", standard.reshape(-1, number, number, dim))
    both = residual.reshape(2, pairs, number, dim)
    z, e = own[:pairs], 0.5 * (both[0] - both[1])
    square = jnp.square(z).sum(-1)[..., None, None]
    outer = e[..., :, None] * z[..., None, :]
    along = (e * z).sum(-1)[..., None, None] * z[..., :, None] * z[..., None, :]
    slope = (outer + jnp.swapaxes(outer, -1, -2)) / square - along / jnp.square(square)
    return Step(
        jnp.zeros(number, standard.dtype),
        SEARCH_STEP * both.mean((0, 1)),
        -SEARCH_STEP * slope.mean(0),
    )


def matching_step(
    components: Components, points: Points, residual: jax.Array, noise: jax.Array | float
) -> Step:
    """The least change of the guide with which its scores at the draws are the target's.

    Parameters
    ----------
    components : Components
    points : Points
        At the N draws of :meth:`MixtureForm.draw`.
    residual : array (N, D)
        grad f at the draws, times L^T of the component that drew.
    noise : float
        Mean square that the residual is expected to have.
    """
    count, number, dim = points.standard.shape
    own = jnp.arange(count) % number
    root = components.scale_tril
    # Rows h of L_j^T L_k^-T, for the component j that drew and each component k.
    table = jnp.einsum("jba,kcb->jkac", root, points.inverse)
    apart = points.pull - points.score[:, None]
    slope = jnp.einsum("nba,nkb->nka", root[own], apart)
    share = points.share

    def one(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        return table[own, k], slope[:, k], points.standard[:, k], share[:, k]

    def add(gram: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        return gram + _gram(*one(k)), None

    size = count * dim
    zero = jnp.zeros((count, dim, count, dim), residual.dtype)
    gram = lax.scan(add, zero, jnp.arange(number))[0].reshape(size, size)
    damping = DAMPING * jnp.trace(gram) / size + noise + jnp.finfo(gram.dtype).tiny
    factor = cho_factor(gram + damping * jnp.eye(size, dtype=gram.dtype))
    multiplier = cho_solve(factor, residual.ravel()).reshape(count, dim)
    steps = [_adjoint(*one(jnp.asarray(k)), multiplier) for k in range(number)]
    return Step(*(jnp.stack(parts) for parts in zip(*steps, strict=True)))


def _gram(h: jax.Array, q: jax.Array, y: jax.Array, r: jax.Array) -> jax.Array:
    """What one component adds to J J^T, (N, D, N, D).

    Row (n, i) of J has the entries r q_i for v, r (h_i + q_i y) for a, and for B
    -r (h_i y^T + y h_i^T + q_i (y y^T - I)) / 2.

    Parameters
    ----------
    h : array (N, D, D)
        Rows of L_j^T L_k^-T.
    q, y : arrays (N, D)
        L_j^T (u_k - grad log q), and the point in units of the component.
    r : array (N,)
        Share of the component.
    """
    dim = y.shape[-1]
    rows = jnp.einsum("nac,mbc->namb", h, h)
    across = jnp.einsum("nac,mc->nam", h, y)
    left = across[..., None]
    right = jnp.transpose(across, (2, 0, 1))[:, None]
    products = y @ y.T
    square = jnp.diagonal(products)
    inner = products[:, None, :, None]
    itself = jnp.einsum("nac,nc->na", h, y)
    first, second = q[:, :, None, None], q[None, None]
    weights = first * second
    means = rows + second * left + first * right + weights * inner
    spread = products**2 - square[:, None] - square[None] + dim
    precisions = 0.5 * (rows * inner + left * right)
    precisions += 0.5 * second * (left * inner - itself[:, :, None, None])
    precisions += 0.5 * first * (right * inner - itself[None, None])
    precisions += 0.25 * weights * spread[:, None, :, None]
    shares = (r[:, None] * r[None])[:, None, :, None]
    return shares * (weights + means + precisions)


def _adjoint(
    h: jax.Array, q: jax.Array, y: jax.Array, r: jax.Array, multiplier: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """J^T times the multiplier (N, D), for one component: its v, a and B. See ``_gram``."""
    along = r * (q * multiplier).sum(-1)
    turned = r[:, None] * jnp.einsum("nac,na->nc", h, multiplier)
    outer = turned.T @ y
    square = (along[:, None] * y).T @ y - along.sum() * jnp.eye(y.shape[-1], dtype=y.dtype)
    return along.sum(), turned.sum(0) + along @ y, -0.5 * (outer + outer.T + square)


def costs(components: Components, points: Points) -> jax.Array:
    """Cost c (K,) of dropping each component, by its own draws; 1 where there is no other."""
    number = len(components.logits)
    if number == 1:
        return jnp.ones_like(components.logits)
    own = jnp.arange(len(points.joint)) % number
    weight = jax.nn.softmax(components.logits)
    without = jnp.where(jnp.arange(number) == own[:, None], -jnp.inf, points.joint)
    rest = jnp.log1p(-jnp.minimum(weight, 1.0 - jnp.finfo(weight.dtype).eps))
    ratio = logsumexp(points.joint, -1) - logsumexp(without, -1) + rest[own]
    return weight * ratio.reshape(-1, number).mean(0)


def move(components: Components, step: Step, trust: float) -> Components:
    """The components after a step, whose length is limited.

    Moves have at most ``LARGEST_MOVE`` units, and eigenvalues of I + B are limited to
    ``trust`` and its inverse.
    """
    length = jnp.linalg.norm(step.move, axis=-1, keepdims=True)
    shift = step.move / jnp.maximum(length / LARGEST_MOVE, 1.0)
    values, vectors = jnp.linalg.eigh(step.precision)
    values = jnp.clip(1.0 + values, 1.0 / trust, trust)[:, None]
    factor = jnp.linalg.cholesky((vectors / values) @ jnp.swapaxes(vectors, -1, -2))
    root = components.scale_tril
    return Components(
        jax.nn.log_softmax(jax.nn.log_softmax(components.logits) + step.log_weight),
        components.loc + jnp.einsum("kij,kj->ki", root, shift),
        # A product of lower triangular factors is lower triangular.
        root @ factor,
    )


def _progress(
    iteration: jax.Array, total: jax.Array | int, dim: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """Share of the run that is done, and the iterations of a round."""
    known = jnp.asarray(total) > 0
    horizon = jnp.where(known, total, UNKNOWN_ITERATIONS)
    progress = jnp.minimum(iteration.astype(dtype) / horizon.astype(dtype), 1.0)
    progress = jnp.where(known, progress, jnp.minimum(progress, UNKNOWN_SHARE))
    return progress, jnp.maximum(horizon // ROUNDS, 2 * dim + LEAST_ROUND)


def _weight_change(
    state: MixtureRegression, components: Components, points: Points, log_density: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Change (K,) of the log weights by values of f, and the new mean squares v."""
    number = len(components.logits)
    values = (log_density - logsumexp(points.joint, -1)).reshape(-1, number).mean(0)
    values = values - jax.nn.softmax(components.logits) @ values
    step = WEIGHT_STEP / (1.0 + WEIGHT_STEP * state.value_square)
    change = jnp.clip(step * values, -WEIGHT_STEP, WEIGHT_STEP)
    rate = jnp.asarray(RECENT, values.dtype)
    return change, averaged(state.value_square, jnp.square(values), rate)


def _restarted(
    state: MixtureRegression, components: Components, standard: jax.Array, due: jax.Array
) -> tuple[MixtureRegression, Components]:
    """Start the component of least cost again, if it is due and its cost is low."""
    number, dim = components.loc.shape
    least = jnp.argmin(state.cost)
    due &= state.cost[least] < LEAST_COST
    start, count = state.start, state.num_restarts
    share = (count + 1).astype(standard.dtype) * GOLDEN % 1.0
    # The first draws in units of their components: standard normal numbers that are there.
    noise = jnp.diagonal(standard[:number]).T[least]
    width = jnp.exp(start.widths[0] + share * (start.widths[1] - start.widths[0]))
    heaviest = jnp.argmax(components.logits)
    root = components.scale_tril[heaviest]
    first = count % 2 == 0
    loc = jnp.where(
        first,
        start.center + start.apart * noise,
        components.loc[heaviest] + REACH * root @ noise,
    )
    identity = jnp.eye(dim, dtype=standard.dtype)
    root = jnp.where(first, width * identity, jnp.exp(-share * NARROWEST) * root)
    fresh = due & (jnp.arange(number) == least)
    loc = jnp.where(fresh[:, None], loc, components.loc)
    root = jnp.where(fresh[:, None, None], root, components.scale_tril)
    state = state._replace(
        num_restarts=state.num_restarts + due.astype(jnp.int32),
        score_square=jnp.where(fresh, 0.0, state.score_square),
    )
    # Light: it is drawn to where the rest of the guide lacks mass, and gains weight there.
    others = logsumexp(jnp.where(fresh, -jnp.inf, components.logits))
    logits = jnp.where(fresh, others + FIRST_LOG_WEIGHT, components.logits)
    return state, Components(logits, loc, root)
