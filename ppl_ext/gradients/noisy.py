"""Scores with noise added, for studying how robust an engine is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from ppl_ext.errors import ArgumentError
from ppl_ext.gradients.estimator import GradientEstimator


@dataclass(frozen=True)
class Noisy(GradientEstimator):
    """Another estimator's scores with normal noise added, for studying robustness.

    Each package's ``Noisy`` has the whole text.
    """

    estimator: Any = None
    level: float = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.estimator is not None and not isinstance(self.estimator, self._base):
            raise ArgumentError(
                "Expected estimator to be a GradientEstimator such as Full(), found "
                f"{type(self.estimator).__name__}. The noise level goes by name: Noisy(level=0.5)."
            )
        if not self.level >= 0:
            raise ArgumentError(f"Expected level >= 0, found {self.level}.")

    @abstractmethod
    def inner(self, target: Any) -> Any:
        """The estimator that the scores come from."""

    @property
    def position_axes(self) -> tuple[tuple[str, int], ...] | None:
        """As the other estimator."""
        found: tuple[tuple[str, int], ...] | None
        found = () if self.estimator is None else self.estimator.position_axes
        return found

    def needs_new_arguments(self, target: Any) -> bool:
        """As the other estimator."""
        return bool(self.inner(target).needs_new_arguments(target))

    def with_own_rows(self, target: Any) -> Any:
        """Noise on scores of the other estimator with rows of each position's own."""
        return replace(self, estimator=self.inner(target).with_own_rows(target))

    def memory_of(self, data: Any) -> Any:
        """As the other estimator."""
        return None if self.estimator is None else self.estimator.memory_of(data)

    def evaluations_per_step(self, target: Any) -> float:
        """Cost of the estimator that the scores come from; noise is free."""
        return float(self.inner(target).evaluations_per_step(target))
