"""Closed form for full-covariance Normal guides: recursive regression of noisy scores.

For a Normal q with mean m and precision P the score, grad log q(theta) = P (m - theta), is linear
in (P m, P). The proximal score-matching objective is then a linear least-squares problem: the
(noisy) scores of the target are regressed on the points where they were taken. Running moments
take the place of an optimiser and average the noise out; there is no learning rate.

*Pairs.* Scores come in mirrored pairs; see :mod:`ppl_ext.score_matching.regression.pairs` for the
halves d and e of their differences. The slope P is regressed on

    V = E[d d^T],   C = E[e d^T],   R = E[e e^T].

*Steps that know the noise.* In coordinates whitened by L, where Sigma = inverse P = L L^T is the
present covariance, the residual R - C V^-1 C^T, over 1 - D / n, is the covariance of the noise.
In its eigenbasis row i of the slope has noise variance r_i / n in each entry, so that

- each row is pulled towards the present precision, the identity, by rho_i = D r_i / n:
  B_i = (rho_i I_i - C_i) (V + rho_i I)^-1, which keeps the noise in B below one half at any
  level and vanishes as n grows;
- the two estimates B_ij and B_ji of one entry of the symmetric precision are averaged with
  weights 1 / r_i and 1 / r_j;
- eigenvalues of the result are limited to at most c, and to no less than
  1 / (1 + (c - 1) / (1 + D r / 3)): a guide that widens faster than the noise lets it see would
  soon rest on its last few draws, as wide draws outweigh the earlier ones, and would run away;
- the mean moves by m+ - m = E[theta] - m + Sigma+ E[score], each row over 1 + rho_i, and by at
  most one unit of Mahalanobis distance. These two averages forget faster at first, see
  :func:`~ppl_ext.score_matching.regression.pairs.next_mean_weight`.

*Overflow.* One score that is finite and yet thirty orders too large would rule V^-1 C for ever: the
guide would shrink to nothing. Pairs with such scores are left out, see
:mod:`ppl_ext.score_matching.regression.overflow`.

The fixed point has E_q[score] = 0 and -E_q[grad score] = P, which by Stein's identity is where
the evidence lower bound is stationary. Without noise it is reached exactly for a Normal target,
once there are D + 5 pairs.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float

from ppl_ext.guides.flat_density import Moments
from ppl_ext.guides.normal import log_density
from ppl_ext.scalars import at_least
from ppl_ext.score_matching.options import DECAY, TRUST
from ppl_ext.score_matching.regression.base import ClosedForm, Draws, Observed
from ppl_ext.score_matching.regression.overflow import LENIENCE
from ppl_ext.score_matching.regression.pairs import (
    Count,
    advanced,
    averaged,
    halves,
    mean_of,
    next_mean_weight,
    next_weight,
)

#: Pairs seen before the first update, beyond the number of regressors.
SPARE_PAIRS = 5
# The share of the noise (in units of D r) that a guide may outrun when it widens.
HASTE = 3.0


class BlockMoments(NamedTuple):
    """Running moments V, C and R of a block of n coordinates with a covariance: (n, n) each.

    ``covariance`` is E[d d^T], ``cross_covariance`` E[e d^T] and ``score_covariance`` E[e e^T],
    with d half the difference of a pair's points and e that of its scores.
    """

    covariance: Float[Any, "n n"]
    cross_covariance: Float[Any, "n n"]
    score_covariance: Float[Any, "n n"]


class FullRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score``, (D,), are averages over the pairs' centres.
    """

    seen: Count
    mean_theta: Float[Any, " D"]
    mean_score: Float[Any, " D"]
    block: BlockMoments

    def lenient(self) -> FullRegression:
        """The state after pairs that were left out."""
        wider = LENIENCE * self.block.score_covariance
        return self._replace(block=self.block._replace(score_covariance=wider))


class Step(NamedTuple):
    """What a whitened regression tells: next to the present guide, whose covariance is I.

    ``covariance`` (n, n) is the next guide's, ``pull`` (n,) is rho and ``basis`` (n, n) has the
    eigenvectors of the noise in its columns.
    """

    covariance: Float[Any, "n n"]
    pull: Float[Any, " n"]
    basis: Float[Any, "n n"]


def is_warm(regression: FullRegression) -> Any:
    """Whether enough pairs were seen for an update: regressors and a few to know the noise."""
    return regression.seen.num_pairs >= len(regression.mean_theta) + SPARE_PAIRS


def free_share(regressors: int, number: Any) -> Any:
    """Share of the pairs' freedom that the regression leaves to the residual."""
    return at_least(1.0 - regressors / number, 1.0 / number)


def limited(precision: Float[Any, " n"], noise: Float[Any, " n"], trust: float) -> Float[Any, " n"]:
    """A whitened precision limited to the trust region, whose lower end knows the noise."""
    # 1 / (1 + (c - 1) / (1 + noise / 3))
    outrun = noise / HASTE + 1.0
    return precision.clip(outrun / (outrun + (trust - 1.0))).clip(max=trust)


class BlockForm:
    """Part of the closed forms that regress a block of coordinates with a covariance."""

    #: Of the form that this is a part of.
    arrays: ClassVar[Any]
    limited = staticmethod(limited)

    @classmethod
    def whitened_step(cls, block: BlockMoments, number: Any, trust: float) -> Step:
        """Regression of one block in coordinates where the present covariance is the identity.

        Parameters
        ----------
        block : BlockMoments
            Whitened moments, (n, n) each.
        number : float
            Pairs that the averages are worth.
        trust : float
        """
        dim, xp = len(block.covariance), cls.arrays.xp
        precision = xp.finfo(block.covariance.dtype)
        spread, axes = xp.linalg.eigh(block.covariance)
        # Averages that forget may be worth fewer pairs than coordinates: V is nearly singular then.
        spread = spread.clip(min=precision.eps * spread[-1])
        along = block.cross_covariance @ axes
        # Symmetric up to rounding.
        # R - C V^-1 C': what the regression of the scores on the points leaves.
        residual = block.score_covariance - (along / spread) @ along.T
        noise, basis = xp.linalg.eigh(residual)
        noise = noise.clip(min=0.0) / free_share(dim, number)
        column = noise[:, None]
        pull = column * (dim / number)
        turned = basis.T @ axes
        # (rho I - C) (V + rho I)^-1, with a rho for each row, in the eigenbases of the noise and of
        # V.
        slope = ((pull * turned - basis.T @ along) / (spread + pull)) @ turned.T
        # The more certain of the two estimates of an entry counts more; without noise, both alike.
        # Weights 1 / r_i, up to a factor that cancels, for r_i that may be 0.
        floor = 1e-6 * noise[-1] + precision.tiny
        weight = floor / (column + floor)
        slope = weight * slope
        eigenvalues, vectors = xp.linalg.eigh((slope + slope.T) / (weight + weight.T))
        # The noise along an eigenvector: the vectors are in the eigenbasis of the noise until the
        # next line.
        eigenvalues = cls.limited(eigenvalues, dim * (noise @ xp.square(vectors)), trust)
        vectors = basis @ vectors
        return Step((vectors / eigenvalues) @ vectors.T, pull[:, 0], basis)

    @classmethod
    def limited_move(cls, move: Float[Any, " ..."]) -> Float[Any, " ..."]:
        """A whitened move shortened to at most one unit."""
        return move / cls.arrays.xp.sqrt(cls.arrays.xp.square(move).sum()).clip(min=1.0)


class FullForm(BlockForm, ClosedForm[FullRegression]):
    """The closed form for ``AutoMultivariateNormal``. O(D^2) memory, O(D^3) operations."""

    @classmethod
    def initial_regression(cls, mean: Float[Any, " D"]) -> FullRegression:
        """No observations yet; zeros like the guide's mean (D,)."""
        # Arrays of their own each, so that the state can be donated.
        theta, score = (cls.arrays.filled(mean.shape, mean) for _ in range(2))
        matrices = (cls.arrays.filled((len(mean), len(mean)), mean) for _ in range(3))
        return FullRegression(cls.arrays.first_count(mean), theta, score, BlockMoments(*matrices))

    def initial(self, parameters: Any) -> FullRegression:
        return self.initial_regression(self.density.mean(parameters))

    def evaluated_draw(self, parameters: Any, generator: Any, num: int) -> Draws:
        # A pair's standard coordinates are known and each other's negatives.
        moments, inverse = known = self._known(parameters)
        mean, scale_tril = moments
        standard = self.density.noise(parameters, generator, (num // 2, len(mean)))
        move, pull = standard @ scale_tril.T, standard @ inverse
        xp = self.arrays.xp
        log_prob, joined = log_density(xp, scale_tril, standard), xp.concatenate
        return Draws(
            joined([mean + move, mean - move]),
            joined([log_prob, log_prob]),
            joined([-pull, pull]),
            known,
        )

    def _known(self, parameters: Any) -> tuple[Moments, Float[Any, "D D"]]:
        """The guide's moments, and the inverse of its scale."""
        moments = self.density.moments(parameters)
        return moments, self._inverse(moments)

    @classmethod
    def _inverse(cls, moments: Moments) -> Float[Any, "D D"]:
        identity = cls.arrays.identity(len(moments.mean), moments.mean)
        return cls.arrays.solve_lower(moments.scale, identity, transpose=True)

    @staticmethod
    def observe(
        regression: FullRegression,
        theta: Float[Any, "S D"],
        score: Float[Any, "S D"],
        decay: float = DECAY,
        total: Any = 0,
    ) -> FullRegression:
        """Add scores (2 K, D) taken at the mirrored points theta (2 K, D).

        ``total`` is the number of iterations of the whole run, 0 when that is not known.
        """
        # Pairs have no mean to take out: d and e change sign with the order of the two points.
        d, e = halves(theta), halves(score)
        pairs = len(d)
        latest = BlockMoments(d.T @ d / pairs, e.T @ d / pairs, e.T @ e / pairs)
        weight = next_weight(regression.seen, decay)
        mean_weight = next_mean_weight(regression.seen, decay, total)
        return FullRegression(
            advanced(regression.seen, pairs, weight),
            averaged(regression.mean_theta, mean_of(theta), mean_weight),
            averaged(regression.mean_score, mean_of(score), mean_weight),
            averaged(regression.block, latest, weight),
        )

    @classmethod
    def screened(
        cls,
        before: FullRegression,
        after: FullRegression,
        scale_tril: Float[Any, "D D"],
        score: Float[Any, "S D"],
    ) -> tuple[FullRegression, Any]:
        """The next state without scores of an overflow, and whether it rests on the latest pairs.

        ``before`` and ``after`` are without the latest pairs, and with them.
        """
        verdict = cls.arrays.judged(*cls.squares(before, scale_tril, score))

        def fresh() -> FullRegression:
            return cls.initial_regression(before.mean_theta)

        return verdict.choose(before.lenient, fresh, lambda: after), verdict.sound

    @classmethod
    def squares(
        cls, state: FullRegression, scale_tril: Float[Any, "D D"], score: Float[Any, "S D"]
    ) -> tuple[Any, Any]:
        """Mean squares of whitened scores that were seen, and of the latest (2 K, D)."""
        seen = scale_tril * (state.block.score_covariance @ scale_tril)
        whitened = halves(score) @ scale_tril
        return seen.sum(), cls.arrays.xp.square(whitened).sum() / len(whitened)

    def update(
        self, state: FullRegression, parameters: Any, given: Observed
    ) -> tuple[FullRegression, Any]:
        theta, score = given.theta, given.score
        moments, inverse = given.known or self._known(parameters)
        observed = self.observe(state, theta, score, self.decay, given.total)
        state, sound = self.screened(state, observed, moments.scale, score)

        def moved(parameters: Any) -> Any:
            following = self.updated_moments(state, moments, self.trust, inverse)
            return self.density.set_moments(parameters, following)

        return state, self.arrays.where_ready(sound & is_warm(state), moved, parameters)

    @classmethod
    def updated_moments(
        cls,
        regression: FullRegression,
        moments: Moments,
        trust: float = TRUST,
        inverse: Float[Any, "D D"] | None = None,
    ) -> Moments:
        """Moments of the next guide, from the running moments and the present guide's.

        Parameters
        ----------
        regression : FullRegression
        moments : Moments
            Mean (D,) and lower triangular scale (D, D) of the present guide.
        trust : float
            The constant c > 1 of the trust region.
        inverse : array (D, D), optional
            Of the present guide's scale, where it is known.
        """
        mean, scale_tril = moments
        block, across = regression.block, scale_tril.T
        inverse = cls._inverse(moments) if inverse is None else inverse
        # Whitened by L: V becomes L^-1 V L^-T, C becomes L^T C L^-T and R becomes L^T R L.
        whitened = BlockMoments(
            inverse @ block.covariance @ inverse.T,
            across @ block.cross_covariance @ inverse.T,
            across @ block.score_covariance @ scale_tril,
        )
        step = cls.whitened_step(whitened, regression.seen.worth, trust)
        offset = inverse @ (regression.mean_theta - mean)
        move = offset + step.covariance @ (across @ regression.mean_score)
        move = cls.limited_move(step.basis @ ((step.basis.T @ move) / (1.0 + step.pull)))
        # A product of lower triangular factors is lower triangular: no factorisation of Sigma.
        factor = cls.arrays.xp.linalg.cholesky(step.covariance)
        return Moments(mean + scale_tril @ move, scale_tril @ factor)
