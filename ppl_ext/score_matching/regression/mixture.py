"""Closed form for mixtures of full-covariance Normals: a search for modes, then a match of scores.

The guide is q = sum_k w_k q_k with q_k = N(m_k, P_k^-1). Every iteration draws mirrored pairs
m_k + d, m_k - d from each component. With f = log pi - log q, all that is used of the target is
f and its gradient at these draws, which vanish (but for a constant in f) where q is the target: so
steps are as quiet as the fit is good. Components move in their own units: with P_k^-1 = L L^T, a
move a and a symmetric change B make m_k + L a and L^-T (I + B) L^-1.

*Search*, the first half of the run. Each component takes natural-gradient steps on the evidence
lower bound (Lin, Khan and Schmidt, 2019, "Fast and simple natural-gradient variational inference
with mixture of exponential-family approximations"): m_k moves by L a with

    a = 0.3 L^T E_k[grad f],   and   B = -0.3 A,

where A stands for L^T E_k[Hess f] L. By Stein's identity that is E_k[e z^T], with z = L^-1 d and e
half the difference of L^T grad f over the pair, but a single e z^T is large: its mean is a sum of
D of them. A is the least symmetric matrix with A z = e instead, as in quasi-Newton methods (and,
for a Normal target, exact along z), which takes D / 2 times longer steps and yet never increases
the error of a precision.

A component can end at a mode that another one has found. Dropping component k would cost

    c_k = w_k E_k[log q - log q_without_k],

the divergence of q to what is left, up to the other components' gain. Twenty times in a run the
component of least c_k, when it is below 0.02, is started again: in turn near where the guide
started, with a width between the narrowest and the widest component's there, and within three
standard deviations or so of the heaviest component, in its shape and up to four times narrower.
Narrow ones find high modes nearby, and wide ones heavy ones. c_k needs no evaluation of the target.

*Match*, the second half. The lower bound of overlapping components has flat valleys, and poor
maxima where a component is lost. But all components together can match the scores at all draws.
The linearised change of grad log q at a draw is, with r_k the component's share of q there,
u_k = P_k (m_k - theta), y = L_k^-1 (theta - m_k) and v_k the change of log w_k,

    sum_k r_k [L_k^-T (a_k - B_k y) + (u_k - grad log q) (v_k + a_k.y + (tr B_k - y.B_k y) / 2)],

that is J x, for all draws and unknowns x = (v, a, B). With R = grad f at the draws, both in units
of the components that drew, the step is the least change of the guide that explains R,

    x = J^T (J J^T + lambda I)^-1 R,   lambda = 0.001 mean diag(J J^T) + mean R^2:

proximal score matching, linearised. Only the inverse of a matrix of the size of R is needed. R in
lambda is of earlier iterations, so that x is linear in the present scores and noise does not bias
it; where scores are noisy or the target cannot be matched, lambda is large and steps are short.
The steps fall to 0 along a half cosine.

*Weights*. Scores tell weights only where components overlap, so values of f are used in both
halves: log w_k moves by b (E_k[f] - E_q[f]), at most by 0.1, with b = 0.1 / sqrt(1 + v) and v the
mean square of E_k[f] - E_q[f] of late. So a component that lies a million nats below the others
loses its weight as fast as one that lies ten below. Constants in log pi do not matter.

*Far away*. The match is linear, and takes what it cannot explain for noise. So where most of the
guide's mass is far from the target, as after a change of the data, the match gives way to the
search: when the means of L^T E_k[grad f] over recent iterations, which noise leaves near zero, have
a weighted mean square of more than 25, and of more than half of the single entries'. In the first
half of a run the search goes on as there, later until the guide has arrived.

Iterations with scores that come from an overflow are left out, see
:mod:`ppl_ext.score_matching.regression.overflow`: each component's scores are compared with its own
earlier ones since it last started.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float

from ppl_ext.guides.mixture import Components
from ppl_ext.scalars import as_number, at_least, at_most, chosen, half_cosine
from ppl_ext.score_matching.regression.base import ClosedForm, Observed
from ppl_ext.score_matching.regression.overflow import LENIENCE, compared
from ppl_ext.score_matching.regression.pairs import averaged

#: Share of the run that is search, and step of the components in it.
SEARCH_SHARE, SEARCH_STEP = 0.5, 0.3
#: Times in a run at which a component may start again, and the cost c_k below which it does.
ROUNDS, LEAST_COST = 20, 0.02
#: A round has at least this many iterations, and two for each coordinate more.
LEAST_ROUND = 20
#: lambda over the mean of the diagonal of J J^T, when scores are matched already.
DAMPING = 0.001
#: Step of the log weights, and its limit.
WEIGHT_STEP = 0.1
#: Limits of one iteration's whitened moves of means, and of the match's change of log weights.
LARGEST_MOVE, LARGEST_CHANGE = 0.3, 0.5
#: Share of the run in which means that have far to go move further, how far, and by which part of
#: the way: a posterior may be thousands of widths away. Later such moves would follow noise.
LONG_SHARE, LONG_MOVE, LONG_FACTOR = 0.25, 3.0, 0.01
#: From which length of the mean whitened gradient a component is far, and which share of the
#: gradients' mean square it must be.
FAR, FAR_SHARE = 5.0, 0.5
#: Weight of the latest iteration in averages over the recent ones.
RECENT = 0.1
#: Iterations that a run of unknown length is taken to have. It stays at three quarters of them.
UNKNOWN_ITERATIONS, UNKNOWN_SHARE = 2000, 0.75
#: How far from the heaviest component others start again, in its standard deviations, and the
#: logarithm of the factor by which they are narrower at the most.
REACH, NARROWEST = 3.0, math.log(4.0)
#: Logarithm of their weight, next to that of all others.
FIRST_LOG_WEIGHT = math.log(0.01)
# Low-discrepancy widths of components that start again.
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


class Start(NamedTuple):
    """How the guide started: what components that start again are like.

    ``center`` (D,) is the mean of the components' means, ``apart`` () their standard deviation
    around it and ``widths`` (2,) the logarithms of the narrowest and the widest scale.
    """

    center: Float[Any, " D"]
    apart: Float[Any, ""]
    widths: Float[Any, " 2"]


class MixtureRegression(NamedTuple):
    """What was seen so far.

    ``cost`` (K,) is c, ``value_square`` (K,) the mean square v and ``residual`` () the mean
    square of R. ``num_updates`` and ``num_restarts`` are counts (). ``matching`` says whether the
    search is over. ``score_square`` (K,) is the mean square of each component's whitened scores, 0
    before there are any. ``gradient`` (K, D) is the mean of L^T grad f at each component's draws,
    and ``gradient_square`` (K,) the mean of its squared length.
    """

    num_updates: Any
    num_restarts: Any
    cost: Float[Any, " K"]
    value_square: Float[Any, " K"]
    residual: Float[Any, ""]
    start: Start
    matching: Any
    score_square: Float[Any, " K"]
    gradient: Float[Any, "K D"]
    gradient_square: Float[Any, " K"]


class Step(NamedTuple):
    """Changes of the guide, in units of its components.

    ``log_weight`` (K,), ``move`` (K, D) and ``precision`` (K, D, D) are v, a and B.
    """

    log_weight: Float[Any, " K"]
    move: Float[Any, "K D"]
    precision: Float[Any, "K D D"]


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
    share : array (N, K)
        Posterior probability r of each component.
    """

    joint: Float[Any, "N K"]
    standard: Float[Any, "N K D"]
    pull: Float[Any, "N K D"]
    inverse: Float[Any, "K D D"]
    share: Float[Any, "N K"]

    @property
    def score(self) -> Float[Any, "N D"]:
        """grad log q, (N, D)."""
        return (self.share[..., None] * self.pull).sum(1)


def progress_of(iteration: Any, total: Any, dim: int) -> tuple[Any, Any]:
    """Share of the run that is done, and the iterations of a round, of T in ``total`` or 0."""
    known = total > 0
    horizon = chosen(known, total, UNKNOWN_ITERATIONS)
    progress = at_most(iteration / horizon, chosen(known, 1.0, UNKNOWN_SHARE))
    return progress, at_least(horizon // ROUNDS, 2 * dim + LEAST_ROUND)


class MixtureForm(ClosedForm[MixtureRegression]):
    """The closed form for ``AutoGaussianMixture`` with ``covariance="full"``.

    O(K D^2) memory and O(K D^3) operations, and with N draws an iteration (N D)^2 numbers.
    ``decay`` has no part in it.
    """

    @staticmethod
    def search_share(dim: int) -> float:
        return SEARCH_SHARE

    @staticmethod
    def group(guide: Any) -> int:
        return 2 * int(guide.num_components)

    def draw(self, parameters: Any, generator: Any, num: int) -> Float[Any, "num D"]:
        """Mirrored pairs of every component in turn: first all halves, then their images."""
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        noise = self.noise(generator, (num // (2 * number), number, dim), components.loc)
        difference = (components.scale_tril @ noise[..., None])[..., 0]
        images = [components.loc + difference, components.loc - difference]
        return self.arrays.xp.concatenate(images).reshape(-1, dim)

    def weights(self, parameters: Any, num: int) -> Float[Any, " num"]:
        weights = self.arrays.softmax(self.density.components(parameters).logits)
        return self.arrays.xp.tile(weights, (num // len(weights),)) * (len(weights) / num)

    def initial(self, parameters: Any) -> MixtureRegression:
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        center, xp, filled = components.loc.mean(0), self.arrays.xp, self.arrays.filled
        square = ((components.loc - center) ** 2).sum() / (max(number - 1, 1) * dim)
        width = xp.log(self.arrays.diagonal(components.scale_tril)).mean(-1)
        start = Start(center, xp.sqrt(square), xp.stack([width.min(), width.max()]))
        # Arrays of their own each, so that the state can be donated.
        value_square, score_square, gradient_square = (filled((number,), center) for _ in range(3))
        gradient = filled((number, dim), center)
        cost, residual = filled((number,), center, 1.0), filled((), center, 1.0)
        updates, restarts, _ = self.arrays.first_count(center)
        matching = self.arrays.first_count(center).num_updates > 0
        return MixtureRegression(
            updates,
            restarts,
            cost,
            value_square,
            residual,
            start,
            matching,
            score_square,
            gradient,
            gradient_square,
        )

    def update(
        self, state: MixtureRegression, parameters: Any, given: Observed
    ) -> tuple[MixtureRegression, Any]:
        theta, score, total = given.theta, given.score, given.total
        components = self.density.components(parameters)
        number, dim = components.loc.shape
        points = self.evaluate(components, theta)
        # L^T of the component that drew.
        # Draws come in turn by component, so draw n is of component n modulo K.
        across = components.scale_tril.mT[self.arange(len(theta), theta) % number]
        # Zero at every draw where the guide is the target: steps are as quiet as the fit is good.
        residual = (across @ (score - points.score)[..., None])[..., 0]
        # Of the target's own scores: an overflow is told from them, whatever the guide has become.
        latest = ((across @ score[..., None])[..., 0] ** 2).sum(-1).reshape(-1, number).mean(0)
        iteration = as_number(state.num_updates, theta)
        done, length = progress_of(iteration, total, dim)
        weight = self.arrays.softmax(components.logits)
        share = weight @ (state.gradient**2).sum(-1)
        # A long mean alone may be one great score: far is where most scores point the same way.
        away = (share > FAR**2) & (share > FAR_SHARE * (weight @ state.gradient_square))
        away = self.truth(away)
        far = away & state.matching
        # Steps after a run, or in a longer one, do not search again, but for what is far away.
        progress = at_least(done, chosen(state.matching & (far ^ True), SEARCH_SHARE, 0.0))
        searching = (progress < SEARCH_SHARE) | far
        # The step's half cosine is that of the second half of the run; the search's stays at one.
        late = at_least(progress - SEARCH_SHARE, 0.0) / (1.0 - SEARCH_SHARE)
        falling = chosen(far, 1.0, half_cosine(late))

        def search() -> Step:
            return self.natural_step(points.standard, residual)

        def match() -> Step:
            step = self.matching_step(components, points, residual, state.residual)
            return step._replace(log_weight=step.log_weight.clip(-LARGEST_CHANGE, LARGEST_CHANGE))

        step = Step(*(falling * change for change in self.either(searching, search, match)))
        value_square = state.value_square
        if given.log_density is not None:
            values = given.log_density
            change, value_square = self._weight_change(state, components, points, values)
            step = step._replace(log_weight=step.log_weight + falling * change)
        # Costs average over a quarter of a round: a component that has just started again is judged
        # by what it is at the round's end.
        rate = as_number(at_most(4.0 / length, 1.0), theta)
        seen = averaged(state.score_square, latest, RECENT)
        gradients = residual.reshape(-1, number, dim)
        gradient = averaged(state.gradient, gradients.mean(0), RECENT)
        square = averaged(state.gradient_square, (gradients**2).sum(-1).mean(0), RECENT)
        updated = MixtureRegression(
            state.num_updates + 1,
            state.num_restarts,
            averaged(state.cost, self.costs(components, points), rate),
            value_square,
            averaged(state.residual, (residual**2).mean(), RECENT),
            state.start,
            (searching ^ True) | (done >= SEARCH_SHARE),
            # Zero says that nothing was seen, also of a component that has just started again; its
            # first scores stand alone.
            self.arrays.xp.where(state.score_square > 0.0, seen, latest),
            gradient,
            square,
        )
        # Means that have arrived would follow noise with long moves.
        reach = chosen((progress < LONG_SHARE) | away, LONG_MOVE, LARGEST_MOVE)
        moved = self.move(components, step, self.trust, reach)
        last = SEARCH_SHARE * chosen(total > 0, total, UNKNOWN_ITERATIONS)
        due = searching & (updated.num_updates % length == 0)
        # One that starts later has no round left in the search to find its place.
        due &= updated.num_updates + length <= last
        due &= updated.cost.min() < LEAST_COST
        updated, moved = self.arrays.where_ready(
            due, lambda both: self._restarted(both[0], both[1], points.standard), (updated, moved)
        )
        wild, spoilt = compared(state.score_square, latest)
        verdict = self.verdict(wild.any(), spoilt.any())
        later = state._replace(num_updates=updated.num_updates, matching=updated.matching)

        def lenient() -> MixtureRegression:
            squares = self.arrays.xp.where(wild, LENIENCE * state.score_square, state.score_square)
            return later._replace(score_square=squares)

        def fresh() -> MixtureRegression:
            return later._replace(
                # All that the earlier scores were averaged into is as at the start; what is of the
                # guide alone stays.
                value_square=self.arrays.xp.zeros_like(state.value_square),
                residual=self.arrays.xp.ones_like(state.residual),
                score_square=self.arrays.xp.where(spoilt, latest, state.score_square),
            )

        def followed(parameters: Any) -> Any:
            return self.density.set_components(parameters, moved)

        after = verdict.choose(lenient, fresh, lambda: updated)
        return after, self.arrays.where_ready(verdict.sound, followed, parameters)

    # -- what the host adds --------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def noise(generator: Any, shape: tuple[int, ...], like: Any) -> Any:
        """Standard Normal numbers, of the type, and on the device, of an array."""

    @staticmethod
    @abstractmethod
    def arange(number: int, like: Any) -> Any:
        """The numbers from 0, on the device of an array."""

    @staticmethod
    @abstractmethod
    def logsumexp(values: Any) -> Any:
        """Logarithm of the sum of exponentials along the last axis."""

    @staticmethod
    @abstractmethod
    def damped_solution(matrix: Any, damping: Any, right: Any) -> Any:
        """Solve (A + lambda I) x = b, for a positive definite A that may be written over."""

    @staticmethod
    @abstractmethod
    def either(condition: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """The value of the first function where a condition holds, else of the second."""

    @staticmethod
    @abstractmethod
    def truth(condition: Any) -> Any:
        """A condition as :meth:`either` and ``chosen`` take it."""

    @staticmethod
    @abstractmethod
    def verdict(wild: Any, spoilt: Any) -> Any:
        """The :class:`~ppl_ext.score_matching.regression.overflow.Overflow` of these."""

    # -- formulas ------------------------------------------------------------------------------

    @classmethod
    def evaluate(cls, components: Components, theta: Float[Any, "N D"]) -> Points:
        """The guide at theta (N, D)."""
        number, dim = components.loc.shape
        root, xp = components.scale_tril, cls.arrays.xp
        identities = cls.arrays.filled((number, dim, dim), theta) + cls.arrays.identity(dim, theta)
        inverse = cls.arrays.solve_lower(root, identities, transpose=True)
        standard = xp.einsum("kij,nkj->nki", inverse, theta[:, None] - components.loc)
        joint = cls.arrays.log_softmax(components.logits)
        joint = joint - xp.log(cls.arrays.diagonal(root)).sum(-1)
        joint = joint - 0.5 * ((standard**2).sum(-1) + dim * math.log(2.0 * math.pi))
        pull = -xp.einsum("kji,nkj->nki", inverse, standard)
        return Points(joint, standard, pull, inverse, cls.arrays.softmax(joint))

    @classmethod
    def natural_step(cls, standard: Float[Any, "N K D"], residual: Float[Any, "N D"]) -> Step:
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
        own = cls.arrays.xp.einsum("pkkd->pkd", standard.reshape(-1, number, number, dim))
        # Draws come as halves, pairs and components in turn, each with its own component's units.
        both = residual.reshape(2, pairs, number, dim)
        z, e = own[:pairs], 0.5 * (both[0] - both[1])
        square = (z**2).sum(-1)[..., None, None]
        outer = e[..., :, None] * z[..., None, :]
        # A = (e z' + z e') / |z|^2 - (e.z) z z' / |z|^4: the symmetric A of least Frobenius norm
        # with A z = e (Powell's update from zero).
        along = (e * z).sum(-1)[..., None, None] * z[..., :, None] * z[..., None, :]
        slope = (outer + outer.mT) / square - along / square**2
        return Step(
            cls.arrays.filled((number,), standard),
            SEARCH_STEP * both.mean((0, 1)),
            -SEARCH_STEP * slope.mean(0),
        )

    @classmethod
    def matching_step(
        cls, components: Components, points: Points, residual: Float[Any, "N D"], noise: Any
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
        own, size = cls.arange(count, residual) % number, count * dim
        root = components.scale_tril
        # Rows h of L_j^T L_k^-T, for the component j that drew and each component k.
        # (K, K, D, D), by components: each draw takes the entry of the one that drew it, and no (N,
        # K, D, D) is formed.
        table = cls.arrays.xp.einsum("jba,kcb->jkac", root, points.inverse)
        apart = points.pull - points.score[:, None]
        slope = cls.arrays.xp.einsum("nba,nkb->nka", root[own], apart)

        def piece(k: Any) -> tuple[Any, Any, Any, Any]:
            return table[own, k], slope[:, k], points.standard[:, k], points.share[:, k]

        # One component after another: J of all would have N D times K (1 + D + D^2) entries.
        def add(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            gram, k = carry
            gram += _gram(*piece(k))
            return gram, k + 1

        gram = cls.arrays.filled((count, dim, count, dim), residual)
        gram = cls.arrays.repeated(number, add, (gram, 0))[0].reshape(size, size)
        # The least normal number keeps the system definite where scores match to the last bit.
        damping = DAMPING * gram.trace() / size + noise + cls.arrays.xp.finfo(gram.dtype).tiny
        multiplier = cls.damped_solution(gram, damping, residual.reshape(-1)).reshape(count, dim)
        identity = cls.arrays.identity(dim, residual)
        steps = [_adjoint(*piece(k), multiplier, identity) for k in range(number)]
        return Step(*(cls.arrays.xp.stack(parts) for parts in zip(*steps, strict=True)))

    @classmethod
    def costs(cls, components: Components, points: Points) -> Float[Any, " K"]:
        """Cost c (K,) of dropping each component, by its own draws; 1 where there is no other."""
        number = len(components.logits)
        if number == 1:
            return cls.arrays.xp.ones_like(components.logits)
        own = cls.arange(len(points.joint), points.joint) % number
        weight = cls.arrays.softmax(components.logits)
        # Each draw without the component that drew it, the only one whose cost that draw tells.
        without = cls.arrays.xp.where(own[:number] == own[:, None], -math.inf, points.joint)
        # A weight that rounds to one leaves the logarithm finite.
        rest = cls.arrays.xp.log1p(-weight.clip(max=1.0 - cls.arrays.xp.finfo(weight.dtype).eps))
        ratio = cls.logsumexp(points.joint) - cls.logsumexp(without) + rest[own]
        return weight * ratio.reshape(-1, number).mean(0)

    @classmethod
    def move(cls, components: Components, step: Step, trust: float, reach: Any) -> Components:
        """The components after a step, whose length is limited.

        Moves have at most ``LARGEST_MOVE`` units, or ``LONG_FACTOR`` of what they would be, up to
        ``reach``; and eigenvalues of I + B are limited to ``trust`` and
        its inverse.
        """
        length = cls.arrays.xp.sqrt((step.move**2).sum(-1))[..., None]
        limit = (LONG_FACTOR * length).clip(LARGEST_MOVE, reach)
        shift = step.move / (length / limit).clip(min=1.0)
        values, vectors = cls.arrays.xp.linalg.eigh(step.precision)
        # Limited as factors: I + B stays positive definite at any step.
        values = (1.0 + values).clip(1.0 / trust, trust)[:, None]
        factor = cls.arrays.xp.linalg.cholesky((vectors / values) @ vectors.mT)
        root = components.scale_tril
        return Components(
            cls.arrays.log_softmax(cls.arrays.log_softmax(components.logits) + step.log_weight),
            components.loc + (root @ shift[..., None])[..., 0],
            # A product of lower triangular factors is lower triangular.
            root @ factor,
        )

    @classmethod
    def _weight_change(
        cls,
        state: MixtureRegression,
        components: Components,
        points: Points,
        log_density: Float[Any, " N"],
    ) -> tuple[Float[Any, " K"], Float[Any, " K"]]:
        """Change (K,) of the log weights by values of f, and the new mean squares v."""
        number = len(components.logits)
        values = (log_density - cls.logsumexp(points.joint)).reshape(-1, number).mean(0)
        # The constant of log pi, which is not known, goes with the mean.
        values = values - cls.arrays.softmax(components.logits) @ values
        step = WEIGHT_STEP / cls.arrays.xp.sqrt(1.0 + state.value_square)
        change = (step * values).clip(-WEIGHT_STEP, WEIGHT_STEP)
        return change, averaged(state.value_square, values**2, RECENT)

    @classmethod
    def _restarted(
        cls, state: MixtureRegression, components: Components, standard: Float[Any, "N K D"]
    ) -> tuple[MixtureRegression, Components]:
        """Start the component of least cost again."""
        number, dim = components.loc.shape
        xp, least, heaviest = cls.arrays.xp, state.cost.argmin(), components.logits.argmax()
        start, count = state.start, state.num_restarts
        # Multiples of the golden ratio spread widths evenly, however many components start again.
        share = as_number(count + 1, standard) * GOLDEN % 1.0
        # The first draw in units of its component: standard normal numbers that are there.
        noise = standard[least, least]
        width = xp.exp(start.widths[0] + share * (start.widths[1] - start.widths[0]))
        root = components.scale_tril[heaviest]
        first = count % 2 == 0
        loc = chosen(
            first,
            start.center + start.apart * noise,
            components.loc[heaviest] + REACH * root @ noise,
        )
        narrower = math.exp(NARROWEST) ** -share
        root = chosen(first, width * cls.arrays.identity(dim, standard), narrower * root)
        fresh = cls.arange(number, standard) == least
        state = state._replace(
            num_restarts=count + 1,
            score_square=xp.where(fresh, 0.0, state.score_square),
            gradient=xp.where(fresh[:, None], 0.0, state.gradient),
        )
        # Light: it is drawn to where the rest of the guide lacks mass, and gains weight there.
        others = cls.logsumexp(xp.where(fresh, -math.inf, components.logits))
        return state, Components(
            xp.where(fresh, others + FIRST_LOG_WEIGHT, components.logits),
            xp.where(fresh[:, None], loc, components.loc),
            xp.where(fresh[:, None, None], root, components.scale_tril),
        )


def _gram(
    h: Float[Any, "N D D"], q: Float[Any, "N D"], y: Float[Any, "N D"], r: Float[Any, " N"]
) -> Float[Any, "N D N D"]:
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
    number, dim = y.shape
    flat = h.reshape(number * dim, dim)
    rows = (flat @ flat.T).reshape(number, dim, number, dim)
    across = h @ y.T
    left = across[..., None]
    right = across.mT.swapaxes(0, 1)[:, None]
    products = y @ y.T
    square = products.diagonal()
    inner = products[:, None, :, None]
    itself = (h @ y[..., None])[..., 0]
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
    h: Float[Any, "N D D"],
    q: Float[Any, "N D"],
    y: Float[Any, "N D"],
    r: Float[Any, " N"],
    multiplier: Float[Any, "N D"],
    identity: Float[Any, "D D"],
) -> tuple[Float[Any, ""], Float[Any, " D"], Float[Any, "D D"]]:
    """J^T times the multiplier (N, D), for one component: its v, a and B. See ``_gram``."""
    along = r * (q * multiplier).sum(-1)
    turned = r[:, None] * (multiplier[:, None] @ h)[:, 0]
    outer = turned.T @ y
    square = (along[:, None] * y).T @ y - along.sum() * identity
    return along.sum(), turned.sum(0) + along @ y, -0.5 * (outer + outer.T + square)
