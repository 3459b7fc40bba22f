"""Errors and warnings raised on purpose, so that callers can tell them from faults."""

from __future__ import annotations

from typing import Any


class ModelCheckError(ValueError):
    """The model cannot be fitted by this engine; raised before any step is taken.

    Examples
    --------
    It is a ``ValueError``, as one of wrong arguments is, so one clause catches both.

    >>> issubclass(ModelCheckError, ValueError) and issubclass(ArgumentError, ValueError)
    True
    """


class ArgumentError(ValueError):
    """The arguments given to an engine do not fit the model or the engine's state.

    Examples
    --------
    >>> Settled(tolerance=-1.0)
    Traceback (most recent call last):
        ...
    ppl_ext.errors.ArgumentError: Expected tolerance to be a finite number > 0, found -1.0.
    """


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
        The best state of the run that it ended, see :class:`~ppl_ext.running.best.Best`.

    Examples
    --------
    >>> try:
    ...     raise NonFiniteError("The loss is not finite.", step=12)  # in place of a run
    ... except NonFiniteError as error:
    ...     print(error.step, error.best)
    12 None
    """

    def __init__(self, message: str, step: int, state: Any = None) -> None:
        super().__init__(message)
        self.step = step
        self.state = state
        self.best: Any = None


class BatchWarning(UserWarning):
    """Steps of some batches of a loader were not finite and were skipped.

    Examples
    --------
    End a run at the first batch that is skipped:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", BatchWarning)
    ...     warnings.warn("told", BatchWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.BatchWarning: told
    """


class RankLostError(RuntimeError):
    """A process of a run with several was killed, has failed or has stalled.

    Examples
    --------
    >>> issubclass(RankLostError, RuntimeError)
    True
    """


class ConvergenceWarning(UserWarning):
    """What is held from here on was found before it had settled.

    Examples
    --------
    End a run instead of going on:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ConvergenceWarning)
    ...     warnings.warn("told", ConvergenceWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.ConvergenceWarning: told
    """


class DivergenceWarning(UserWarning):
    """Steps of a chain were not finite and were not taken.

    Examples
    --------
    Let diverging draws be an error in a script:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", DivergenceWarning)
    ...     warnings.warn("told", DivergenceWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.DivergenceWarning: told
    """


class EvaluationWarning(UserWarning):
    """A model is evaluated in a slower way than usual; the message says why.

    Examples
    --------
    See to it that a model is not evaluated in a slower way:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", EvaluationWarning)
    ...     warnings.warn("told", EvaluationWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.EvaluationWarning: told
    """


class HeldParameterWarning(UserWarning):
    """Parameters without a prior are held at their present values.

    Examples
    --------
    See to it that no parameter is without a prior:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", HeldParameterWarning)
    ...     warnings.warn("told", HeldParameterWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.HeldParameterWarning: told
    """


class NoisyScoreWarning(UserWarning):
    """An engine that needs exact scores is given noisy ones; the message names alternatives.

    Examples
    --------
    See to it that such an engine gets exact scores:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", NoisyScoreWarning)
    ...     warnings.warn("told", NoisyScoreWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.NoisyScoreWarning: told
    """


class ResumeWarning(UserWarning):
    """A saved state goes on with settings, or rows, that are not those that it was saved with.

    Examples
    --------
    See to it that a run goes on exactly as it would have:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ResumeWarning)
    ...     warnings.warn("told", ResumeWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.ResumeWarning: told
    """


class LostFitWarning(UserWarning):
    """A run ended far above its best; the message says where that was kept.

    Examples
    --------
    Let a lost fit be an error in a script:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", LostFitWarning)
    ...     warnings.warn("told", LostFitWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.LostFitWarning: told
    """


class DoubtfulFitWarning(UserWarning):
    """Something speaks against an answer; the message says what, and what to do.

    Examples
    --------
    Let a doubtful answer be an error in a script:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", DoubtfulFitWarning)
    ...     warnings.warn("told", DoubtfulFitWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.DoubtfulFitWarning: told
    """


class UnsettledWarning(UserWarning):
    """A run that was to go on until it has settled has not; the message says what to do.

    Examples
    --------
    Let a run that has not settled be an error in a script:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", UnsettledWarning)
    ...     warnings.warn("told", UnsettledWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.UnsettledWarning: told
    """


class StartWarning(UserWarning):
    """A run's start was not searched for to the end; the message says where it starts instead.

    Examples
    --------
    See to it that starts are searched for to the end:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", StartWarning)
    ...     warnings.warn("told", StartWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.StartWarning: told
    """


class DataWarning(UserWarning):
    """A model does not see the data as they were given, or not all of them; the message says what.

    Examples
    --------
    See to it that a model sees all of its data:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", DataWarning)
    ...     warnings.warn("told", DataWarning)  # in place of a run
    Traceback (most recent call last):
        ...
    ppl_ext.errors.DataWarning: told
    """
