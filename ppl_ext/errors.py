"""Errors and warnings raised on purpose, so that callers can tell them from faults."""

from __future__ import annotations

from typing import Any


class ModelCheckError(ValueError):
    """The model cannot be fitted by this engine; raised before any step is taken."""


class ArgumentError(ValueError):
    """The arguments given to an engine do not fit the model or the engine's state."""


class NonFiniteError(RuntimeError):
    """A step produced a non-finite value.

    Parameters
    ----------
    message : str
        What was found and what to do.
    step : int
        Number of the step that failed, counted from the engine's first.
    state : object
        The last finite state, from which a run can be continued, for example with a smaller step
        size; None where the engine itself still holds it.

    Attributes
    ----------
    best : Best or None
        The best state of the run that it ended, see :class:`~ppl_ext.best.Best`.
    """

    def __init__(self, message: str, step: int, state: Any = None) -> None:
        super().__init__(message)
        self.step = step
        self.state = state
        self.best: Any = None


class BatchWarning(UserWarning):
    """Steps of some batches of a loader were not finite and were skipped."""


class RankLostError(RuntimeError):
    """A process of a run with several was killed, has failed or has stalled."""


class ConvergenceWarning(UserWarning):
    """What is held from here on was found before it had settled."""


class DivergenceWarning(UserWarning):
    """Steps of a chain were not finite and were not taken."""


class EvaluationWarning(UserWarning):
    """A model is evaluated in a slower way than usual; the message says why."""


class HeldParameterWarning(UserWarning):
    """Parameters without a prior are held at their present values."""


class NoisyScoreWarning(UserWarning):
    """An engine that needs exact scores is given noisy ones; the message names alternatives."""


class ResumeWarning(UserWarning):
    """A saved state goes on with settings, or rows, that are not those that it was saved with."""


class LostFitWarning(UserWarning):
    """A run ended far above its best; the message says where that was kept."""


class UnsettledWarning(UserWarning):
    """A run that was to go on until it has settled has not; the message says what to do."""


class StartWarning(UserWarning):
    """A run's start was not searched for to the end; the message says where it starts instead."""
