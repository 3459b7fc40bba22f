"""Observed distributions whose Fisher information both packages' tests check.

Each case names a distribution of a host, built from floating parameters, which the tests move,
and fixed ones. ``directions``
gives those of the moved vector that keep it legal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Case = tuple[str, dict[str, Any], dict[str, Any]]

#: In both hosts under the same names.
SHARED: dict[str, Case] = {
    "Normal": ("Normal", {"loc": 0.3, "scale": 1.7}, {}),
    "LogNormal": ("LogNormal", {"loc": 0.3, "scale": 0.7}, {}),
    "Laplace": ("Laplace", {"loc": 0.3, "scale": 1.7}, {}),
    "Cauchy": ("Cauchy", {"loc": 0.3, "scale": 1.7}, {}),
    "Logistic": ("Logistic", {"loc": 0.3, "scale": 1.7}, {}),
    "Gumbel": ("Gumbel", {"loc": 0.3, "scale": 1.7}, {}),
    "HalfNormal": ("HalfNormal", {"scale": 1.7}, {}),
    "HalfCauchy": ("HalfCauchy", {"scale": 1.7}, {}),
    "StudentT": ("StudentT", {"df": 4.5, "loc": 0.3, "scale": 1.7}, {}),
    "Normal vector": (
        "MultivariateNormal",
        {"loc": [0.3, -1.0], "scale_tril": [[1.2, 0.0], [0.5, 0.8]]},
        {},
    ),
    "Bernoulli logits": ("Bernoulli", {"logits": 0.7}, {}),
    "Bernoulli probs": ("Bernoulli", {"probs": 0.3}, {}),
    "Binomial logits": ("Binomial", {"logits": 0.7}, {"total_count": 5}),
    "Binomial probs": ("Binomial", {"probs": 0.3}, {"total_count": 5}),
    "Geometric logits": ("Geometric", {"logits": 0.7}, {}),
    "Geometric probs": ("Geometric", {"probs": 0.3}, {}),
    "Categorical logits": ("Categorical", {"logits": [0.7, -0.2, 0.1]}, {}),
    "Categorical probs": ("Categorical", {"probs": [0.5, 0.2, 0.3]}, {}),
    "Multinomial logits": ("Multinomial", {"logits": [0.7, -0.2, 0.1]}, {"total_count": 4}),
    "Multinomial probs": ("Multinomial", {"probs": [0.5, 0.2, 0.3]}, {"total_count": 4}),
    "OrderedLogistic": ("OrderedLogistic", {"predictor": 0.3, "cutpoints": [-1.0, 0.2, 1.5]}, {}),
    "Poisson": ("Poisson", {"rate": 2.3}, {}),
    "GammaPoisson": ("GammaPoisson", {"concentration": 1.4, "rate": 0.6}, {}),
    "Zero-inflated Poisson": ("ZeroInflatedPoisson", {"gate": 0.3, "rate": 1.7}, {}),
    "Exponential": ("Exponential", {"rate": 2.3}, {}),
    "Gamma": ("Gamma", {"concentration": 2.3, "rate": 0.7}, {}),
    "InverseGamma": ("InverseGamma", {"concentration": 2.3, "rate": 0.7}, {}),
    "Weibull": ("Weibull", {"scale": 2.3, "concentration": 1.7}, {}),
    "Beta": ("Beta", {"concentration1": 2.3, "concentration0": 0.7}, {}),
    "Dirichlet": ("Dirichlet", {"concentration": [2.3, 0.7, 1.2]}, {}),
}
DRAWS = 20_000


def flatten(parameters: dict[str, Any]) -> tuple[np.ndarray, dict[str, slice]]:
    """The moved parameters as one vector, and where each of them is."""
    parts, slices, start = [], {}, 0
    for name, value in parameters.items():
        array = np.asarray(value, dtype=float).reshape(-1)
        slices[name] = slice(start, start + array.size)
        parts.append(array)
        start += array.size
    return np.concatenate(parts), slices


def directions(parameters: dict[str, Any]) -> np.ndarray:
    """Directions, as columns, in which the moved vector stays legal."""
    flat, slices = flatten(parameters)
    columns = np.eye(flat.size)
    if "probs" in parameters and np.ndim(parameters["probs"]) == 1:
        where = slices["probs"]
        columns[where, where] -= 1.0 / (where.stop - where.start)
    if "scale_tril" in parameters:
        lower = np.tril(np.ones(np.shape(parameters["scale_tril"]))).reshape(-1)
        columns[slices["scale_tril"], slices["scale_tril"]] *= lower
    for name in ("covariance_matrix", "precision_matrix"):
        if name in parameters:
            size = len(parameters[name])
            swapped = np.arange(size * size).reshape(size, size).T.reshape(-1)
            columns[slices[name], slices[name]] += np.eye(size * size)[swapped]
    return columns


def assert_is_fisher(found: np.ndarray, scores: np.ndarray) -> None:
    """See that a matrix is the mean outer product of scores (S, K), within Monte Carlo error."""
    count = len(scores)
    mean = scores.T @ scores / count
    spread = np.sqrt(np.maximum((scores**2).T @ (scores**2) / count - mean**2, 0.0) / count)
    # Hundreds of entries are compared in all, so five standard errors.
    np.testing.assert_array_less(np.abs(found - mean), 5.0 * spread + 1e-5 * np.abs(mean).max())


#: Logit of the first weight, locations and logarithms of the scales of an overlapping mixture.
MIXTURE = np.array([-0.7, -0.5, 1.0, -0.3, 0.4])


def mixture_fisher() -> tuple[np.ndarray, np.ndarray]:
    """Fisher information (5, 5) of ``MIXTURE`` by integration, and sd of one draw's outer product.

    Scores are differences of the log density that is written out here.
    """
    x = np.linspace(-14.0, 16.0, 60_001)

    def log_density(z: np.ndarray) -> np.ndarray:
        weights = np.array([1.0, np.exp(-z[0])]) / (1.0 + np.exp(-z[0]))
        scale = np.exp(z[3:])
        standard = (x[:, None] - z[1:3]) / scale
        each = weights * np.exp(-0.5 * standard**2) / (scale * np.sqrt(2.0 * np.pi))
        return np.log(each.sum(1))

    steps = 1e-5 * np.eye(5)
    score = np.stack(
        [(log_density(MIXTURE + h) - log_density(MIXTURE - h)) / 2e-5 for h in steps], -1
    )
    outer = score[:, :, None] * score[:, None, :]
    density = np.exp(log_density(MIXTURE))[:, None, None]
    mean = np.trapezoid(outer * density, x, axis=0)
    square = np.trapezoid(outer**2 * density, x, axis=0)
    return mean, np.sqrt(square - mean**2)


def key_of(backend: Any, seed: int = 0) -> tuple[Any, ...]:
    """The random key that NumPyro's functions take besides; Pyro draws from torch's generator."""
    if backend.name == "pyro":
        import pyro

        pyro.set_rng_seed(seed)
        return ()
    return (backend.key(seed),)


def gauss_newton(backend: Any, model: Any, z: Any, *args: Any) -> np.ndarray:
    """J' F J of a model at a position (D,), from its whitened Jacobian."""
    target, data = backend.target(model, args)
    room, key = backend.room("curvature"), key_of(backend)

    def rows(z: Any) -> Any:
        return room.jacobian_rows(target, z, data, {}, *key)[0]

    found = backend.numpy(backend.compiled(rows)(backend.array(z)[None]))
    return np.asarray(found.T @ found)


def root_and_scores(
    backend: Any, make: Any, moved: dict[str, Any], fixed: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Jacobian of the Fisher root in the legal directions, and scores of draws in these (S, K)."""
    flat, slices = flatten(moved)

    def build(vector: Any) -> Any:
        values = {
            each: vector[where].reshape(np.shape(moved[each])) for each, where in slices.items()
        }
        return make(**values, **fixed)

    found = _of_torch if backend.name == "pyro" else _of_jax
    return found(build, flat, directions(moved))


def _of_jax(build: Any, flat: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import jax

    from numpyro_ext.curvature import fisher_root
    from numpyro_ext.density.outputs import output_of

    @jax.jit
    def both(vector: Any) -> Any:
        values = build(vector).sample(jax.random.key(1), (DRAWS,))

        def output(vector: Any) -> Any:
            site = {"fn": build(vector), "value": values[0], "scale": None, "name": "y"}
            return output_of({**site, "cond_indep_stack": []})

        def root(moving: Any) -> Any:
            parameters = jax.tree.map(lambda x: x * 1.0, output(moving).parameters)
            return fisher_root(output(vector), parameters, jax.random.key(0)).reshape(-1)

        scores = jax.jacfwd(lambda moving: build(moving).log_prob(values))(vector)
        return jax.jacfwd(root)(vector), scores

    jacobian, scores = both(flat)
    return np.asarray(jacobian) @ columns, np.asarray(scores) @ columns


def _of_torch(build: Any, flat: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import pyro
    import torch

    from pyro_ext.curvature import fisher_root
    from pyro_ext.density.handlers import without_host_checks

    start = torch.from_numpy(flat)
    pyro.set_rng_seed(1)
    with without_host_checks():
        values, point = build(start).sample((DRAWS,)), output_of_pyro(build(start))

        def root(vector: Any) -> Any:
            parameters = output_of_pyro(build(vector)).parameters
            return fisher_root(point, {n: v.double() for n, v in parameters.items()}).reshape(-1)

        jacobian = torch.func.jacrev(root)(start).numpy() @ columns
        # Central differences, since forward mode lacks some distributions' derivatives.
        step = 1e-5
        scores = [
            build(start + step * column).log_prob(values)
            - build(start - step * column).log_prob(values)
            for column in torch.from_numpy(columns).T
        ]
    return jacobian, torch.stack(scores, -1).numpy() / (2 * step)


def output_of_pyro(fn: Any) -> Any:
    """The output of a site with this distribution."""
    import pyro
    import torch

    from pyro_ext.density.outputs import OutputHandler

    handler = OutputHandler({}, {})
    with handler:
        pyro.sample("y", fn, obs=torch.zeros(fn.shape()))
    return handler.outputs["y"]
