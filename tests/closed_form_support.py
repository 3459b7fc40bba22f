"""Closed forms of both packages behind one face: given scores, or run on scores of a function.

A step is one program for every decay, trust and length of a run: in NumPyro that is what takes
time. Functions of theta are written with what torch and jax.numpy have alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ppl_ext.score_matching.options import DECAY, TRUST
from ppl_ext.score_matching.regression.base import Observed
from tests.guides_support import divergence
from tests.score_support import guide_of, room

#: A guide for each structure, of latents in one site of two rows or columns at least.
GUIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "diagonal": ("AutoDiagonalNormal", {}),
    "full": ("AutoMultivariateNormal", {}),
    "low_rank": ("AutoLowRankMultivariateNormal", {"rank": 1}),
    "matrix_normal": ("AutoMatrixNormal", {}),
    "layer_low_rank": ("AutoLayerLowRankNormal", {"rank": 1}),
    "mixture": ("AutoGaussianMixture", {"num_components": 2}),
}
#: Iterations of a long run that one program of NumPyro's makes together, and when a run is long.
TOGETHER, LONG = 1000, 4000


def latents(face: Any, *shape: int) -> Callable[[], None]:
    """A program of standard Normal latents in one site of this shape."""

    def model() -> None:
        normal = face.dist.Normal(face.zeros(*shape), 1.0)
        face.host.sample("z", normal.to_event(len(shape)))

    return model


def density_of(face: Any, structure: str, *shape: int, **options: Any) -> Any:
    """Density of a guide of this structure, on latents of this shape."""
    name, defaults = GUIDES[structure]
    if face.name == "pyro":
        face.host.set_rng_seed(0)
    return face.density(guide_of(face, name, latents(face, *shape), **(defaults | options)))


def set_to(face: Any, density: Any, mean: Any, scale: Any) -> Any:
    """Parameters with which the guide has this mean and scale."""
    moments = face.guides.Moments(face.array(mean), face.array(scale))
    return density.set_moments(density.initial_parameters(), moments)


def mirrored(draws: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Draws (K, D) and their mirror images about the mean."""
    return np.concatenate([draws, 2.0 * mean - draws])


class ClosedForm:
    """The closed form for a density, its update one program.

    Parameters
    ----------
    face : Face
    structure : str
    density : FlatDensity
    score : callable, optional
        From points theta (S, D) and what the iteration is given besides to scores (S, D) and log
        densities (S,) or None.
    draws : int
        Points of an iteration of :meth:`fit`.
    """

    def __init__(
        self,
        face: Any,
        structure: str,
        density: Any,
        score: Callable[..., tuple[Any, Any]] | None = None,
        draws: int = 2,
    ) -> None:
        self.face, self.density = face, density
        kind = room(face, "score.regression").CLOSED_FORMS[structure]
        self.form = kind(density)

        def update(decay: Any, trust: Any, state: Any, parameters: Any, *given: Any) -> Any:
            with _without_graphs(face):
                return kind(density, decay, trust).update(state, parameters, Observed(*given))

        def step(source: Any, t: Any, extra: Any, total: Any, options: Any, *fit: Any) -> Any:
            assert score is not None
            with _without_graphs(face):
                form = kind(density, *options)
                if face.name == "numpyro":
                    source = face.jax.random.fold_in(source, t)
                theta = form.draw(fit[1], source, draws)
                scores, values = score(theta, extra)
                return form.update(*fit, Observed(theta, scores, total, values))

        def steps(source: Any, first: Any, extras: Any, total: Any, options: Any, *fit: Any) -> Any:
            def one(fit: Any, given: Any) -> tuple[Any, None]:
                return step(source, *given, total, options, *fit), None

            places = first + face.backend.xp.arange(TOGETHER)
            return face.jax.lax.scan(one, fit, (places, extras))[0]

        self._update, self._step, self._steps = map(face.backend.compiled, (update, step, steps))

    def update(
        self,
        state: Any,
        parameters: Any,
        theta: np.ndarray,
        score: np.ndarray,
        total: int = 0,
        values: np.ndarray | None = None,
        decay: float = DECAY,
        trust: float = TRUST,
    ) -> tuple[Any, Any]:
        """The state and parameters after an iteration with these scores."""
        arrays = (None if each is None else self.face.array(each) for each in (score, values))
        score, values = arrays
        theta = self.face.array(theta)
        found: tuple[Any, Any] = self._update(
            decay, trust, state, parameters, theta, score, total, values
        )
        return found

    def fit(
        self,
        parameters: Any,
        steps: int,
        *,
        seed: int = 0,
        total: int | None = None,
        decay: float = DECAY,
        trust: float = TRUST,
        extra: Callable[[int], Any] = lambda t: 0.0,
    ) -> Any:
        """Parameters after iterations with the scores of the function, at draws of the guide."""
        state, source = self.form.initial(parameters), self.face.backend.key(seed)
        rest, done = (steps if total is None else total, (decay, trust)), 0
        if self.face.name == "numpyro" and steps >= LONG:
            stack = self.face.backend.xp.stack
            for done in range(TOGETHER, steps + 1, TOGETHER):
                extras = [extra(t) for t in range(done - TOGETHER, done)]
                extras = self.face.jax.tree.map(lambda *each: stack(each), *extras)
                given = source, done - TOGETHER, extras, *rest
                state, parameters = self._steps(*given, state, parameters)
        for t in range(done, steps):
            state, parameters = self._step(source, t, extra(t), *rest, state, parameters)
        return parameters


def _without_graphs(face: Any) -> Any:
    """Without torch's graphs."""
    if face.name == "pyro":
        import torch

        return torch.no_grad()
    return nullcontext()


def normal_scores(face: Any, number: int, dim: int) -> Callable[..., Any]:
    """Scores of Normals, side by side in one vector, of which :func:`targets` tells."""

    def score(theta: Any, given: Any) -> tuple[Any, None]:
        mean, precision, level, noise = given
        offset = mean - theta.reshape(-1, number, dim)
        exact = (offset[..., None, :] @ precision)[..., 0, :]
        # The noise of equation 19 of the proximal score-matching paper.
        size = level * face.backend.xp.amax(abs(exact), -1)[..., None]
        return (exact + size * noise).reshape(len(theta), -1), None

    return score


def targets(
    face: Any, normals: list[tuple[np.ndarray, np.ndarray]], level: float, seed: int
) -> Callable[[int], Any]:
    """What an iteration of one pair is given: means, precisions, level of noise, and noise."""
    mean = face.array(np.stack([mean for mean, _ in normals]))
    precision = face.array(np.stack([np.linalg.inv(covariance) for _, covariance in normals]))
    generator = np.random.default_rng(seed)
    return lambda t: (mean, precision, level, face.array(generator.normal(size=(2, *mean.shape))))


@cache
def fitter(face: Any, structure: str, *shape: int, number: int = 1, **options: Any) -> ClosedForm:
    """The closed form for latents of this shape, to be fitted to Normals side by side in them."""
    scores = normal_scores(face, number, prod(shape) // number)
    return ClosedForm(face, structure, density_of(face, structure, *shape, **options), scores)


def lost_nats(
    form: ClosedForm, start: Any, target: Any, level: float, seed: int, pairs: int, **options: Any
) -> float:
    """KL(q || target) after this many pairs with scores of relative noise."""
    options["extra"] = targets(form.face, [target], level, seed)
    found = form.fit(start, pairs, seed=seed, **options)
    mean, root = form.face.numpy(tuple(form.density.moments(found)))
    return divergence(mean, root @ root.T, *target)
