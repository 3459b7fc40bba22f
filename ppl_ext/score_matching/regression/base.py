"""What every closed form of the proximal step has: a state, and one update of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.guides.arrays import ArrayFunctions
from ppl_ext.score_matching.options import DECAY, TRUST

State = TypeVar("State")


class Draws(NamedTuple):
    """Points (S, D) of an iteration, with the guide's log density (S,) and score (S, D) there.

    ``known`` is what the form has found out about the guide, and will need for the update.
    """

    theta: Float[Any, "S D"]
    log_prob: Float[Any, " S"]
    score: Float[Any, "S D"]
    known: Any = None


class Observed(NamedTuple):
    """What an iteration has seen of the target.

    Parameters
    ----------
    theta, score : arrays (2 K, D)
        Points of :meth:`ClosedForm.draw` and the target's scores there.
    total : int
        Iterations of the whole run; 0 when that is not known.
    log_density : array (2 K,), optional
        The target's log density there, up to a constant. Only mixtures use it.
    known
        As in :class:`Draws`, where the points are those of :meth:`ClosedForm.evaluated_draw`.
    """

    theta: Float[Any, "S D"]
    score: Float[Any, "S D"]
    total: Any = 0
    log_density: Float[Any, " S"] | None = None
    known: Any = None


class FormArrays(ArrayFunctions):
    """Functions of a framework's arrays that closed forms need besides."""

    @classmethod
    def antithetic(cls, theta: Float[Any, "K D"], mean: Float[Any, " D"]) -> Float[Any, "S D"]:
        """Draws (K, D) and their mirror images about the mean, (2 K, D)."""
        return cls.xp.concatenate([theta, 2.0 * mean - theta])

    @staticmethod
    def filled(shape: tuple[int, ...], like: Any, value: float = 0.0) -> Any:
        """One number, or zeros, of the type, and on the device, of an array."""
        raise NotImplementedError

    @staticmethod
    def first_count(like: Any) -> Any:
        """A ``pairs.Count`` of nothing, beside arrays of this type."""
        raise NotImplementedError

    @staticmethod
    def judged(seen: Any, latest: Any) -> Any:
        """The ``overflow.Overflow`` on mean squares of scores."""
        raise NotImplementedError

    @staticmethod
    def where_ready(condition: Any, function: Callable[[Any], Any], value: Any) -> Any:
        """A function of a value where a condition holds, else the value."""
        raise NotImplementedError


@documents_subclasses
class ClosedForm(ABC, Generic[State]):
    """Closed-form proximal score matching for guides of one covariance structure.

    Methods are pure: they return new states and parameters. States are named tuples of arrays and
    numbers, which may hold each other, plain tuples and dictionaries of arrays.

    Parameters
    ----------
    density : FlatDensity
        The guide's.
    decay : float
        Exponent of the running averages; see :mod:`ppl_ext.score_matching.regression.pairs`.
    trust : float
        Limit c > 1 on how far one update changes the precision.
    """

    arrays: ClassVar[type[FormArrays]]

    def __init__(self, density: Any, decay: float = DECAY, trust: float = TRUST) -> None:
        self.density = density
        self.decay = decay
        self.trust = trust

    @abstractmethod
    def initial(self, parameters: Any) -> State:
        """No observations yet."""

    @staticmethod
    def group(guide: Any) -> int:
        """Of how many draws an iteration must have a multiple: pairs, unless overridden."""
        return 2

    def unsuited(self, parameters: Any) -> str | None:
        """Why this form cannot fit this guide, with what to use instead; None if it can."""
        return None

    @staticmethod
    def search_share(dim: int) -> float:
        """Share of a run in which a guide of ``dim`` coordinates looks for its place."""
        return 0.0

    def draw(self, parameters: Any, generator: Any, num: int) -> Float[Any, "num D"]:
        """Points (num, D) of an iteration: mirrored pairs about the guide's mean by default.

        ``generator`` is what the host draws with; ``num`` is a multiple of :meth:`group`.
        """
        theta = self.density.sample(parameters, generator, num // 2)
        return self.arrays.antithetic(theta, self.density.mean(parameters))

    def evaluated_draw(self, parameters: Any, generator: Any, num: int) -> Draws:
        """The points of :meth:`draw`, with what the guide is there."""
        theta = self.draw(parameters, generator, num)
        return Draws(theta, *self.density.log_prob_and_score(parameters, theta))

    def weights(self, parameters: Any, num: int) -> Float[Any, " num"]:
        """Weights (num,), of sum 1, with which the points of :meth:`draw` stand for the guide."""
        return self.arrays.filled((num,), self.density.mean(parameters), 1.0 / num)

    def figures(
        self,
        parameters: Any,
        draws: Draws,
        score: Float[Any, "S D"],
        log_p: Float[Any, " S"],
    ) -> tuple[Any, dict[str, Any]]:
        """The loss of an iteration, and the means of the log densities of target and guide.

        ``score`` and ``log_p`` are the target's at the points.
        """
        weights = self.weights(parameters, len(log_p))
        loss = weights @ self.arrays.xp.square(draws.score - score).sum(-1)
        return loss, {"log_p": weights @ log_p, "log_q": weights @ draws.log_prob}

    @abstractmethod
    def update(self, state: State, parameters: Any, given: Observed) -> tuple[State, Any]:
        """Take in one iteration's scores and move the guide.

        ``parameters`` are the unconstrained ones of the present guide, which drew the points.
        """
