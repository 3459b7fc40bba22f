"""Engines that fit a guide, without arrays: their options, checks and warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ppl_ext.engines.base import EngineShell
from ppl_ext.engines.descent import draws_to_look_at, set_descent
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_number, refuse
from ppl_ext.running.piece import Piece
from ppl_ext.start.given import HOST


class GuideShell(EngineShell):
    """Base of the engines that fit a guide with a flat log density.

    Parameters
    ----------
    model : callable
        The host's model, used as it is.
    guide : AutoContinuous
        An autoguide of the model, or the class, which is then called with the model; with
        ``reparameterise`` the class, or any function that makes a guide of a program.
    optim : optimizer or mapping, optional
        Pyro's (see ``pyro_ext.optim.EngineOptimizer``), NumPyro's or optax's; or a mapping that
        gives sites optimizers of their own, see
        :class:`~ppl_ext.score_matching.options.GradientSteps`. Default, where the engine uses one:
        Adam with a learning rate that falls from 0.01 to 0 along a cosine over the run.
    num_samples : int, optional
        Draws S per step. None when the engine chooses by the guide, in ``_plan``.
    clip_norm : float, optional
        The gradient in all of the guide's parameters, as one vector, is shortened to this length
        where it is longer. Default: not.
    initial_scale : float, optional
        Standard deviation of every coordinate, in the unconstrained space, at the start, in place
        of the start's. Default: the start's, or the guide's own.
    total_steps : int, optional
        T when steps are taken one by one. ``run`` sets T to the steps taken so far plus its own,
        so that a run resumed for its remaining steps has the T of the uninterrupted one. Steps
        taken after a run has ended are outside it and have this T again, not the run's. While T
        is unknown, t/T is taken as 0.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or an option is out of range.
    """

    allow_local_latents = False
    makes_draws = True
    _draws_to_look_at = draws_to_look_at
    num_samples: Any
    clip_norm: float | None
    total_steps: int | None
    #: What the host's guides are instances of.
    _host_guide: ClassVar[Any]
    #: What the engine uses of an optimizer that was given, checked.
    _host_optimizer: ClassVar[Any]

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        num_samples: int | None = None,
        *,
        clip_norm: float | None = None,
        initial_scale: float | None = None,
        total_steps: int | None = None,
        **options: Any,
    ) -> None:
        refuse(type(self), options, "init_strategy")
        super().__init__(model, **options)
        set_descent(self, optim, num_samples, clip_norm, total_steps)
        if self.reparameterise and isinstance(guide, self._host_guide):
            name = type(guide).__name__
            raise ArgumentError(
                "Expected the guide's class, or a function that makes a guide of a program, with "
                f"reparameterise=True, found a guide of the program as written. Pass {name}, or "
                f"lambda model: {name}(model, ...)."
            )
        is_class = isinstance(guide, type) and issubclass(guide, self._host_guide)
        if is_class or (self.reparameterise and callable(guide)):
            try:
                guide = guide(self._program)
            except TypeError as error:
                raise ArgumentError(
                    f"Expected a guide class that takes the model alone, found {guide.__name__}: "
                    f"{error}. Pass a guide, such as {guide.__name__}(model, ...)."
                ) from error
        self._check_flat_density(guide)
        check_number("initial_scale", initial_scale, optional=True)
        self.guide = guide
        self.initial_scale = initial_scale

    @staticmethod
    def _check_flat_density(guide: Any) -> Any:
        """See that a guide has a flat log density."""
        raise NotImplementedError

    def _has_own_start(self) -> bool:
        """Whether the guide was made with another place or scale to start from than the host's
        default, or has parameters already."""
        raise NotImplementedError

    def _default_start(self, plan: Any) -> str:
        can = plan.density.takes_start and not self._has_own_start()
        return super()._default_start(plan) if can else HOST

    @property
    def density(self) -> Any:
        """The guide as a density over the flat unconstrained vector."""
        return self.plan.density

    def _nats(self, piece: Piece) -> Any:
        # Minus the evidence lower bound. Matched scores are in the latents' units, and small for
        # a guide that is far too wide.
        return piece.info["log_q"] - piece.info["log_p"]

    def _settings(self) -> dict[str, str]:
        return {"guide": type(self.guide).__name__, **super()._settings()}
