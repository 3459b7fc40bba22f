"""Outputs of networks on held-out rows, and what is kept of those of a reference."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.target import PACKAGES

if TYPE_CHECKING:
    from xarray import Dataset

Floats = NDArray[np.float64]

#: Probabilities of the quantiles that are kept.
LEVELS = np.arange(1, 50) / 50.0
#: Probabilities below this count as this: single precision has none that is nearer to 1.
LEAST = 1e-7


@dataclass(frozen=True)
class Outputs:
    """Outputs of S draws on N held-out rows.

    Attributes
    ----------
    values : array (S, M)
        Numbers without bounds. Regression: the means of all rows, and the logarithm of the
        standard deviation, of all rows or, where all have one, once. Classification: the logits
        less their mean over the classes, of the second class alone where there are two.
    log_likelihood : array (S, N)
    probabilities : array (N, K) or None
        Class probabilities, means over the draws; None in regression.
    metrics : dict
        What ``predictive_metrics`` says.
    """

    values: Floats
    log_likelihood: Floats
    probabilities: Floats | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def log_density(self) -> float:
        """Mean over the rows of the logarithm of the predictive density."""
        from scipy.special import logsumexp

        each = logsumexp(self.log_likelihood, axis=0) - np.log(len(self.log_likelihood))
        return float(each.mean())


def outputs_of(predictive: Dataset, metrics: Mapping[str, float]) -> Outputs:
    """Outputs in a predictive distribution with observations."""
    likelihood = predictive["log_likelihood"].values.astype(np.float64)
    if "probabilities" not in predictive:
        mean = predictive["mean"].values.astype(np.float64)
        spread = 0.5 * np.log(predictive["variance"].values.astype(np.float64))
        one = bool((spread == spread[:, :1]).all())
        values = np.concatenate([mean, spread[:, :1] if one else spread], 1)
        return Outputs(values, likelihood, metrics=metrics)
    probabilities = predictive["probabilities"].values.astype(np.float64)
    logits = np.log(np.clip(probabilities, LEAST, None))
    logits = logits - logits.mean(-1, keepdims=True)
    kept = logits[..., 1:] if logits.shape[-1] == 2 else logits
    values = kept.reshape(len(kept), -1)
    return Outputs(values, likelihood, probabilities.mean(0), metrics)


def predicted(
    backend: str,
    model: Any,
    draws: Mapping[str, NDArray[Any]],
    held_out: tuple[Any, ...],
    linear_at: Mapping[str, Any] | None = None,
) -> Outputs:
    """Outputs of draws (S, ...) by site; of the network made linear at values, where given."""
    package = importlib.import_module(PACKAGES[backend])
    array = importlib.import_module("benchmarks.hosts").host_of(backend).array
    given = {name: array(value) for name, value in draws.items()}
    at = False if linear_at is None else {name: array(each) for name, each in linear_at.items()}
    found = package.predictive_distribution(model, given, *held_out, linearize=at)
    metrics = package.predictive_metrics(found)
    return outputs_of(found, {str(name): float(metrics[name]) for name in metrics.data_vars})


@dataclass(frozen=True)
class Reference:
    """What is kept of the outputs of long chains.

    Attributes
    ----------
    mean, sd : array (M,)
    quantiles : array (49, M)
        At :data:`LEVELS`.
    probabilities : array (N, K) or None
    about : dict
        How it was made, and how well its chains agree: greatest R-hat, least effective number, and
        the difference of the means of the two halves of the chains in standard deviations, all of
        outputs; the log predictive density and the metrics.
    """

    mean: Floats
    sd: Floats
    quantiles: Floats
    probabilities: Floats | None
    about: Mapping[str, Any]

    @classmethod
    def of(cls, found: Outputs, about: Mapping[str, Any]) -> Reference:
        """What is kept of outputs."""
        return cls(
            found.values.mean(0),
            found.values.std(0),
            np.quantile(found.values, LEVELS, axis=0),
            found.probabilities,
            {**about, "log density": found.log_density, "metrics": dict(found.metrics)},
        )

    def save(self, path: Path) -> None:
        """Write it, in single precision."""
        arrays = {"mean": self.mean, "sd": self.sd, "quantiles": self.quantiles}
        if self.probabilities is not None:
            arrays["probabilities"] = self.probabilities
        kept: dict[str, Any] = {name: each.astype(np.float32) for name, each in arrays.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, about=np.array(json.dumps(self.about)), **kept)

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Read one."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
        found = {name: each.astype(np.float64) for name, each in arrays.items()}
        found.setdefault("probabilities", None)
        return cls(**found, about=about)
