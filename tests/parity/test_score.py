"""The two packages take the same steps of the score engines on the same numbers, in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from ppl_ext.score_matching.fisher_divergence import NORMS
from tests.backends import use_float64
from tests.closed_form_support import GUIDES, ClosedForm, mirrored
from tests.guides_support import check_close, face_of, normal
from tests.mixture_support import random_mixture
from tests.models import zoo
from tests.score_support import draws_and_scores, guide_of, room, updated

use_float64()

FACES = [face_of(package) for package in ("pyro", "numpyro")]
#: Of a vector and of a matrix.
REST, ROWS, COLUMNS = 4, 3, 2
DIM, NUMBER = REST + ROWS * COLUMNS, 3
NORMALS = ["diagonal", "full", "low_rank", "matrix_normal"]


def density_of(face: Any, structure: str) -> Any:
    """Density of a guide of this structure."""

    def model() -> None:
        for name, shape in (("z", (REST,)), ("w", (ROWS, COLUMNS))):
            site = face.dist.Normal(face.zeros(*shape), 1.0).to_event(len(shape))
            face.host.sample(name, site)

    options = {
        "low_rank": {"rank": 2},
        "layer_low_rank": {"rank": 2},
        "mixture": {"num_components": NUMBER},
    }.get(structure, {})
    return face.density(guide_of(face, GUIDES[structure][0], model, **options))


def start_of(face: Any, structure: str, density: Any) -> Any:
    """Parameters with which the guides of both packages are the same."""
    draws, initial = np.random.default_rng(1), density.initial_parameters()
    loc, scale = draws.normal(size=DIM), draws.uniform(0.5, 1.5, size=DIM)
    row, column, whole = (
        np.linalg.cholesky(root @ root.T + np.eye(size))
        for size in (ROWS, COLUMNS, DIM)
        for root in [draws.normal(size=(size, size)) / 2]
    )
    array, guides = face.array, face.guides
    if structure in ("diagonal", "full"):
        root = scale if structure == "diagonal" else whole
        return density.set_moments(initial, guides.Moments(array(loc), array(root)))
    if structure == "low_rank":
        factor = draws.normal(size=(DIM, 2))
        return face.constrained(density, {"loc": loc, "scale": scale, "cov_factor": factor})
    if structure == "layer_low_rank":
        return density.set_parts(*map(array, (loc, scale, draws.normal(size=(DIM, 2)))))
    if structure == "matrix_normal":
        matrices = {"w": (array(row), array(column))}
        factors = room(face, "guides.matrix_normal").Factors
        return density.set_factors(initial, factors(array(loc), array(scale[:REST]), matrices))
    mixture = random_mixture(draws, NUMBER, DIM)
    # Two components that are of no use yet.
    mixture = mixture._replace(logits=np.array([0.0, -30.0, -30.0]))
    components = room(face, "guides.mixture").Components
    return density.set_components(initial, components(*map(array, mixture)))


def figures(face: Any, structure: str, density: Any, parameters: Any) -> tuple[np.ndarray, ...]:
    """What the guide is, in numbers that do not depend on the host's parameters."""
    kind = density.components if structure == "mixture" else density.moments
    return tuple(face.call(kind, parameters))


@pytest.mark.parametrize("structure", GUIDES)
def test_densities_agree(structure: str) -> None:
    theta, found = normal(2, 3, DIM), []
    for face in FACES:
        density = density_of(face, structure)
        parameters = start_of(face, structure, density)
        values = [face.call(f, parameters, theta) for f in (density.log_prob, density.score)]
        found.append([*values, *face.call(density.moments, parameters)])
    check_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("structure", NORMALS)
def test_inner_steps_agree(structure: str) -> None:
    """Several steps down the gradient on one batch of draws and scores."""
    theta, score = normal(3, 2, 3, DIM)
    weight, found = 0.3, []
    for face in FACES:
        density, objective = density_of(face, structure), room(face, "score.objective")
        parameters, arrays = start_of(face, structure, density), face.backend.arrays((theta, score))
        target = objective.blended_target(
            arrays[1], face.array(face.call(density.score, parameters, theta)), weight
        )
        start, values = figures(face, structure, density, parameters), [face.numpy(target)]

        gradient = face.backend.compiled(partial(objective.proximal_gradient, density))
        for _ in range(4):
            value, slopes = gradient(parameters, arrays[0], target, weight)
            values.append(face.numpy(value))
            parameters = {name: entry - 1e-3 * slopes[name] for name, entry in parameters.items()}
        end = figures(face, structure, density, parameters)
        assert not any(np.allclose(a, b) for a, b in zip(start[:2], end, strict=False))
        found.append([*values, *end])
    check_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("structure", GUIDES)
def test_closed_forms_agree(structure: str, known: bool) -> None:
    """Updates from the same scores, each from the draws of the guide as it then is.

    Those of a mixture are a run with restarts, search and match.
    """
    steps = 240 if structure == "mixture" else 12
    total = steps + 2 if known else 0
    noise, seen, found = np.random.default_rng(4), [], []
    for face in FACES:
        density = density_of(face, structure)
        form, parameters = ClosedForm(face, structure, density), start_of(face, structure, density)
        state, start = form.form.initial(parameters), figures(face, structure, density, parameters)
        for t in range(steps):
            if face is FACES[0]:
                theta = points_of(structure, figures(face, structure, density, parameters), noise)
                score = 0.5 - 2.0 * theta + 0.1 * noise.normal(size=theta.shape)
                seen.append((theta, score, -np.square(theta - 0.25).sum(1)))
            theta, score, values = seen[t]
            state, parameters = form.update(state, parameters, theta, score, total, values)
        end = figures(face, structure, density, parameters)
        assert not any(np.allclose(a, b) for a, b in zip(start, end, strict=True))
        assert structure != "mixture" or int(state.num_restarts) >= 2
        found.append(end)
    loose = {"rtol": 1e-7, "atol": 1e-9}
    check_close(*found, **(loose if structure == "mixture" else {"rtol": 1e-9, "atol": 1e-12}))


def points_of(
    structure: str, guide: tuple[np.ndarray, ...], generator: np.random.Generator
) -> np.ndarray:
    """Mirrored draws of the guide: two pairs, or a pair of each component of a mixture."""
    if structure == "mixture":
        _, loc, roots = guide
        draws = loc + np.einsum("kij,kj->ki", roots, generator.normal(size=loc.shape))
        return mirrored(draws, loc)
    mean, root = guide
    root = np.diag(root) if root.ndim == 1 else root
    return mirrored(mean + generator.normal(size=(2, DIM)) @ root.T, mean)


@pytest.mark.parametrize(("dim", "number"), [(1, 1), (5, 2), (3, 8)])
def test_matching_updates_agree(dim: int, number: int) -> None:
    given = draws_and_scores(dim, number)
    for name, options in (("gsm", {}), ("bam", {"weight": 7.5})):
        found = (updated(face, name, *given, **options) for face in FACES)
        check_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["logistic_regression", "dependent_uniform"])
def test_fisher_gradients_agree(name: str, norm: str) -> None:
    """On the same noise; the gradients in the mean and in the scale have the same coordinates."""
    assert zoo.ZOO[name].same_transform
    options, found = zoo.ZOO[name].options, []
    for face in FACES:
        model, arguments = face.backend.models.build(name), face.backend.models.arguments(name)
        target, data = face.backend.target(model, arguments, options)
        module, twice = room(face, "score.fisher"), target
        if face.name == "pyro":
            twice = module.DifferentiableTarget(target)
        density = face.density(guide_of(face, "AutoDiagonalNormal", model), *arguments, **options)
        loc, scale = face.array(0.3 * normal(3, 2, target.dim))
        noise = face.array(normal(4, 2, target.dim))
        names = list(density.initial_parameters())
        mean = next(each for each in names if each.endswith("loc"))
        (deviation,) = set(names) - {mean}

        def draw(parameters: Any, density: Any = density, noise: Any = noise) -> Any:
            moments = density.moments(parameters)
            return moments.mean + noise * moments.scale

        def score(theta: Any, twice: Any = twice, data: Any = data) -> Any:
            return twice.full_score(theta, data).score, theta

        gradient_at = partial(module.fisher_gradient, density, draw=draw, score=score, norm=norm)
        parameters = {mean: loc, deviation: scale}
        value, gradient, _ = face.numpy(face.backend.compiled(gradient_at)(parameters))
        found.append((value, gradient[mean], gradient[deviation]))
    check_close(*found, rtol=1e-9, atol=1e-11)
