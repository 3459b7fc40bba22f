"""What every closed form of the proximal step has: a state, and one update of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ppl_ext.score import DECAY, TRUST
from pyro_ext.guides.flat_density import FlatDensity, Parameters
from pyro_ext.score.regression.pairs import antithetic

State = TypeVar("State")


class Draws(NamedTuple):
    """Points (S, D) of an iteration, with the guide's log density (S,) and score (S, D) there."""

    theta: Tensor
    log_prob: Tensor
    score: Tensor


class ClosedForm(ABC, Generic[State]):
    """Closed-form proximal score matching for guides of one covariance structure.

    Methods are pure: they return new states and parameters. States are named tuples of tensors and
    numbers, which may hold each other, plain tuples and dictionaries of tensors.

    Parameters
    ----------
    density : FlatDensity
        The guide's.
    decay : float
        Exponent of the running averages; see :mod:`pyro_ext.score.regression.pairs`.
    trust : float
        Limit c > 1 on how far one update changes the precision.
    """

    def __init__(self, density: FlatDensity, decay: float = DECAY, trust: float = TRUST) -> None:
        self.density: Any = density
        self.decay = decay
        self.trust = trust

    @abstractmethod
    def initial(self, parameters: Parameters) -> State:
        """No observations yet."""

    @staticmethod
    def group(guide: Any) -> int:
        """Of how many draws an iteration must have a multiple: pairs, unless overridden."""
        return 2

    def unsuited(self, parameters: Parameters) -> str | None:
        """Why this form cannot fit this guide, with what to use instead; None if it can."""
        return None

    def draw(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        """Points (num, D) of an iteration: mirrored pairs about the guide's mean by default.

        ``num`` is a multiple of :meth:`group`.
        """
        draws = self.density.sample(parameters, generator, num // 2)
        return antithetic(draws, self.density.mean(parameters))

    def evaluated_draw(self, parameters: Parameters, generator: torch.Generator, num: int) -> Draws:
        """The points of :meth:`draw`, with what the guide is there."""
        theta = self.draw(parameters, generator, num)
        return Draws(theta, *self.density.log_prob_and_score(parameters, theta))

    def weights(self, parameters: Parameters, num: int) -> Tensor:
        """Weights (num,), of sum 1, with which the points of :meth:`draw` stand for the guide."""
        return next(iter(parameters.values())).new_full((num,), 1.0 / num)

    @abstractmethod
    def update(
        self,
        state: State,
        parameters: Parameters,
        theta: Tensor,
        score: Tensor,
        total: int = 0,
        log_density: Tensor | None = None,
    ) -> tuple[State, Parameters]:
        """Take in one iteration's scores and move the guide.

        Parameters
        ----------
        state : named tuple
        parameters : dict of tensors
            Unconstrained parameters of the present guide, which drew ``theta``.
        theta, score : tensors (2 K, D)
            Points of :meth:`draw` and the target's scores there.
        total : int
            Iterations of the whole run; 0 when that is not known.
        log_density : tensor (2 K,), optional
            The target's log density there, up to a constant. Only mixtures use it.
        """


def saved(state: Any) -> Any:
    """A state as plain containers, for a file."""
    if hasattr(state, "_asdict"):
        return {name: saved(value) for name, value in state._asdict().items()}
    if isinstance(state, dict):
        return {name: saved(value) for name, value in state.items()}
    return [saved(value) for value in state] if isinstance(state, tuple) else state


def restored(like: Any, state: Any) -> Any:
    """Inverse of :func:`saved`, for a state of the form of ``like``."""
    if hasattr(like, "_asdict"):
        entries = like._asdict()
        return type(like)(**{name: restored(entries[name], state[name]) for name in entries})
    if isinstance(like, dict):
        return {name: restored(value, state[name]) for name, value in like.items()}
    if isinstance(like, tuple):
        return tuple(restored(*pair) for pair in zip(like, state, strict=True))
    return state
