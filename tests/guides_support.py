"""Guides of both packages behind one face, in float64: models, densities and the hosts' own verbs.

A model is one text for both hosts: ``face.host.sample("x", face.dist.Normal(face.zeros(2), 1.0))``.
Parameters are dictionaries of a framework's arrays; all other values come out as NumPy arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tests.backends import backend_of

#: Learning rate of the step that :meth:`svi_step` takes.
RATE = 1e-3


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


class Face:
    """What both packages' guides share."""

    backend: Any
    host: Any
    dist: Any
    guides: Any
    #: Names of the guides' parameters begin so.
    prefix: str

    def __init__(self, package: str) -> None:
        self.backend = backend_of(package)
        self.name = package

    def array(self, value: Any) -> Any:
        return self.backend.array(value)

    def arrays(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.array(value) for name, value in values.items()}

    def single(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays by name, in single precision."""
        array = self.backend.array
        return {name: array(self.numpy(each), "float32") for name, each in values.items()}

    def zeros(self, *shape: int) -> Any:
        return self.array(np.zeros(shape))

    def ones(self, *shape: int) -> Any:
        return self.array(np.ones(shape))

    def numpy(self, tree: Any) -> Any:
        """NumPy arrays of arrays in tuples and dictionaries."""
        if isinstance(tree, Mapping):
            return {name: self.numpy(value) for name, value in tree.items()}
        if isinstance(tree, tuple | list):
            parts = [self.numpy(value) for value in tree]
            return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
        return self.backend.numpy(tree)

    def random(self, density: Any, size: float, seed: int = 3) -> dict[str, Any]:
        """The initial parameters with noise added."""
        seeds = itertools.count(seed)

        def moved(tree: Any) -> Any:
            if isinstance(tree, Mapping):
                return {name: moved(tree[name]) for name in sorted(tree)}
            if isinstance(tree, tuple | list):
                return type(tree)(map(moved, tree))
            return self.array(tree + size * normal(next(seeds), *np.shape(tree)))

        return moved(self.numpy(density.initial_parameters()))


class PyroFace(Face):
    """Guides of ``pyro_ext``."""

    prefix = ""

    def __init__(self) -> None:
        super().__init__("pyro")
        import pyro

        import pyro_ext.guides as guides

        self.host, self.dist, self.guides = pyro, pyro.distributions, guides
        self.autoguide, self.infer = pyro.infer.autoguide, pyro.infer

    def density(self, guide: Any, *args: Any, seed: int = 0, **options: Any) -> Any:
        return self.guides.flat_density(guide, args, seed=seed, **options)

    def automatic(self, guide: Any) -> Any:
        """The base class: the host's log density, differentiated automatically."""
        return self.guides.FlatDensity(guide)

    def constrained(self, density: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters from constrained values by name without prefix."""
        import torch

        plain = dict(density.guide.named_parameters())
        with torch.no_grad():
            for name, value in values.items():
                if name in plain:
                    plain[name].copy_(self.array(value))
                else:
                    setattr(density.guide, name, self.array(value))
        return density.initial_parameters()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A method of a density at parameters and points (..., D), or another pure function."""
        return self.numpy(function(*map(self._given, arguments)))

    def _given(self, value: Any) -> Any:
        import torch

        plain = isinstance(value, np.ndarray | np.generic | float)
        return torch.as_tensor(np.asarray(value)) if plain else value

    def draws(self, density: Any, parameters: Any, number: int, seed: int = 0) -> np.ndarray:
        import torch

        before = torch.get_rng_state()
        draws = density.sample(parameters, torch.Generator().manual_seed(seed), number)
        assert not draws.requires_grad
        # The global generator has no part in them, and is left alone.
        assert torch.equal(torch.get_rng_state(), before)
        return self.numpy(draws)

    def no_gradient_through(self, density: Any, parameters: Any) -> None:
        """See that draws have no gradient."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        import torch

        draws = density.sample(leaves, torch.Generator().manual_seed(0), 3)
        assert not draws.requires_grad

    def posterior(self, density: Any, parameters: Any) -> Any:
        density.write_back(parameters)
        return density.guide.get_posterior()

    def posterior_draws(self, density: Any, parameters: Any, number: int) -> np.ndarray:
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.numpy(self.posterior(density, parameters).sample((number,)))

    def median(self, density: Any, parameters: Any) -> dict[str, np.ndarray]:
        density.write_back(parameters)
        return self.numpy(density.guide.median())

    def quantiles(self, density: Any, parameters: Any, levels: list[float]) -> Any:
        density.write_back(parameters)
        found = density.guide.quantiles(levels)
        return {name: np.stack([self.numpy(v) for v in value]) for name, value in found.items()}

    def host_draws(
        self, density: Any, parameters: Any, model: Any, number: int, parallel: bool = False
    ) -> list[Any]:
        """Draws by site, in every way that the host has."""
        import torch

        density.write_back(parameters)
        options = {"num_samples": number, "parallel": parallel}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            draws = self.infer.Predictive(model, guide=density.guide, **options)()
        return [self.numpy(draws)]

    def svi_step(
        self, density: Any, parameters: Any, model: Any, *args: Any, num_particles: int = 4
    ) -> dict[str, Any]:
        """Parameters after one step of the host's SVI with Adam."""
        density.write_back(parameters)
        optim = self.host.optim.Adam({"lr": RATE})
        many = num_particles > 1
        loss = self.infer.Trace_ELBO(num_particles, vectorize_particles=many)
        self.host.clear_param_store()
        self.infer.SVI(model, density.guide, optim, loss).step(*args)
        return self.numpy(density.initial_parameters())

    def elbo(self, density: Any, parameters: Any, model: Any, *args: Any) -> float:
        """The host's loss of one draw."""
        density.write_back(parameters)
        return float(self.infer.Trace_ELBO().loss(model, density.guide, *args))

    def jacobian(self, function: Callable[..., Any], point: Any) -> np.ndarray:
        import torch

        return self.numpy(torch.autograd.functional.jacobian(function, torch.as_tensor(point)))

    def gradient(self, function: Callable[[dict[str, Any]], Any], parameters: Any) -> Any:
        """Gradient of a scalar function of parameters."""
        import torch

        leaves = {
            name: value.detach().clone().requires_grad_() for name, value in parameters.items()
        }
        found = torch.autograd.grad(function(leaves), list(leaves.values()), allow_unused=True)
        return {
            name: np.zeros(leaf.shape) if part is None else self.numpy(part)
            for (name, leaf), part in zip(leaves.items(), found, strict=True)
        }

    def hessian(self, function: Callable[[Any], Any], point: Any) -> np.ndarray:
        import torch

        return self.numpy(torch.autograd.functional.hessian(function, torch.as_tensor(point)))

    def elementwise_derivatives(
        self, function: Callable[..., Any], arguments: list[np.ndarray], order: int
    ) -> np.ndarray:
        """All derivatives of one order of an elementwise function: (2,) * order + (number,)."""
        import torch

        leaves = [torch.tensor(each).requires_grad_() for each in arguments]
        values = [function(*leaves)]
        for _ in range(order):
            values = [
                part
                for value in values
                for part in torch.autograd.grad(value.sum(), leaves, create_graph=True)
            ]
        return self.numpy(torch.stack(values)).reshape(*[2] * order, -1)

    def svi(
        self,
        model: Any,
        guide: Any,
        num_steps: int,
        rate: float,
        num_particles: int,
        start: Mapping[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Losses of a run of the host's SVI with Adam, and the guide's constrained values.

        ``start`` replaces initial values that have no constraint.
        """
        import torch

        self.host.clear_param_store()
        loss = self.infer.Trace_ELBO(
            num_particles, vectorize_particles=True, max_plate_nesting=0 if start else float("inf")
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if start:
                guide._setup_prototype()
            for name, value in (start or {}).items():
                getattr(guide, name).data = self.array(value)
            svi = self.infer.SVI(model, guide, self.host.optim.Adam({"lr": rate}), loss)
            losses = np.array([svi.step() for _ in range(num_steps)])
        return losses, {name: self.numpy(getattr(guide, name)) for name in start or {}}

    def fitted_parameters(self, fit: Any) -> Any:
        """Parameters of a :class:`~tests.backends.Fit` of a guide."""
        return fit.engine.parameters

    def to_arviz(self, fit: Any, *args: Any, **options: Any) -> Any:
        return self.backend.public.to_arviz(fit.engine, *args, **options)


class NumPyroFace(Face):
    """Guides of ``numpyro_ext``."""

    prefix = "auto_"

    def __init__(self) -> None:
        super().__init__("numpyro")
        import jax
        import numpyro

        import numpyro_ext.guides as guides

        self.jax = jax
        self.host, self.dist, self.guides = numpyro, numpyro.distributions, guides
        self.autoguide, self.infer = numpyro.infer.autoguide, numpyro.infer
        self._compiled: dict[Any, Any] = {}

    def density(self, guide: Any, *args: Any, seed: int = 0, **options: Any) -> Any:
        return self.guides.flat_density(guide, self.jax.random.key(seed), args, **options)

    def automatic(self, guide: Any) -> Any:
        return self.guides.FlatDensity(guide, self.jax.random.key(0))

    def constrained(self, density: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        prefix = density.guide.prefix
        return density.from_host(
            self.arrays({f"{prefix}_{name}": value for name, value in values.items()})
        )

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # Bound methods are equal when they are the same method of the same object.
        if function not in self._compiled:
            self._compiled[function] = self.jax.jit(function)
        given = (self.array(v) if isinstance(v, np.ndarray | np.generic) else v for v in arguments)
        return self.numpy(self._compiled[function](*given))

    def draws(self, density: Any, parameters: Any, number: int, seed: int = 0) -> np.ndarray:
        return self.numpy(density.sample(parameters, self.jax.random.key(seed), number))

    def no_gradient_through(self, density: Any, parameters: Any) -> None:
        key = self.jax.random.key(0)
        gradient = self.jax.jit(self.jax.grad(lambda p: density.sample(p, key, 3).sum()))
        leaves = self.jax.tree.leaves(gradient(parameters))
        assert leaves and all(not np.any(leaf) for leaf in leaves)

    def posterior(self, density: Any, parameters: Any) -> Any:
        return density.guide.get_posterior(density.write_back(parameters))

    def posterior_draws(self, density: Any, parameters: Any, number: int) -> np.ndarray:
        posterior = self.posterior(density, parameters)
        return self.numpy(posterior.sample(self.jax.random.key(0), (number,)))

    def median(self, density: Any, parameters: Any) -> dict[str, np.ndarray]:
        params = density.write_back(parameters)
        return self.numpy(self.jax.jit(density.guide.median)(params))

    def quantiles(self, density: Any, parameters: Any, levels: list[float]) -> Any:
        params = density.write_back(parameters)
        return self.numpy(self.jax.jit(lambda p: density.guide.quantiles(p, levels))(params))

    def host_draws(
        self, density: Any, parameters: Any, model: Any, number: int, parallel: bool = False
    ) -> list[Any]:
        guide, key = density.guide, self.jax.random.key(0)
        predictive = self.infer.Predictive

        def draw(params: Any) -> Any:
            return (
                guide.sample_posterior(key, params, sample_shape=(number,)),
                predictive(guide, params=params, num_samples=number)(key),
            )

        return list(self.numpy(self.jax.jit(draw)(density.write_back(parameters))))

    def svi_step(
        self, density: Any, parameters: Any, model: Any, *args: Any, num_particles: int = 4
    ) -> dict[str, Any]:
        optim, loss = self.host.optim.Adam(RATE), self.infer.Trace_ELBO(num_particles)
        svi = self.infer.SVI(model, density.guide, optim, loss)
        params = density.write_back(parameters)
        state = svi.init(self.jax.random.key(0), *args, init_params=params)
        state, _ = self.jax.jit(svi.update)(state, *args)
        return self.numpy(density.from_host(svi.get_params(state)))

    def elbo(self, density: Any, parameters: Any, model: Any, *args: Any) -> float:
        params, key = density.write_back(parameters), self.jax.random.key(0)
        return float(self.infer.Trace_ELBO().loss(key, params, model, density.guide, *args))

    def jacobian(self, function: Callable[..., Any], point: Any) -> np.ndarray:
        return self.numpy(self.jax.jit(self.jax.jacobian(function))(self.array(point)))

    def gradient(self, function: Callable[[dict[str, Any]], Any], parameters: Any) -> Any:
        return self.numpy(self.jax.jit(self.jax.grad(function))(parameters))

    def hessian(self, function: Callable[[Any], Any], point: Any) -> np.ndarray:
        return self.numpy(self.jax.jit(self.jax.hessian(function))(self.array(point)))

    def elementwise_derivatives(
        self, function: Callable[..., Any], arguments: list[np.ndarray], order: int
    ) -> np.ndarray:
        jax, jnp = self.jax, self.jax.numpy

        def backward(function: Any) -> Any:
            def slopes(*values: Any) -> Any:
                shape = jax.eval_shape(function, *values).shape
                _, pull = jax.vjp(function, *values)
                # Every component apart: the derivative of its sum over elements.
                parts = jnp.eye(int(np.prod(shape[:-1]))).reshape(-1, *shape[:-1], 1)
                found = jax.vmap(pull)(jnp.broadcast_to(parts, (len(parts), *shape)))
                return jnp.stack(found, 1).reshape(*shape[:-1], 2, shape[-1])

            return slopes

        def forward(function: Any) -> Any:
            def slopes(a: Any, b: Any) -> Any:
                one, zero = jnp.ones_like(a), jnp.zeros_like(a)
                tangents = ((one, zero), (zero, one))
                return jnp.stack([jax.jvp(function, (a, b), each)[1] for each in tangents], -2)

            return slopes

        # Reverse mode for the first two, forward mode on top of it.
        for number in range(order):
            function = backward(function) if number < 2 else forward(function)
        return self.numpy(jax.jit(function)(*map(self.array, arguments)))

    def svi(
        self,
        model: Any,
        guide: Any,
        num_steps: int,
        rate: float,
        num_particles: int,
        start: Mapping[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        optim, loss = self.host.optim.Adam(rate), self.infer.Trace_ELBO(num_particles)
        svi, key = self.infer.SVI(model, guide, optim, loss), self.jax.random.key(0)
        options = {}
        if start:
            given = {f"auto_{name}": self.array(value) for name, value in start.items()}
            options["init_params"] = svi.get_params(svi.init(key)) | given
        run = svi.run(key, num_steps, progress_bar=False, **options)
        values = self.numpy(run.params)
        return self.numpy(run.losses), {name: values[f"auto_{name}"] for name in start or {}}

    def fitted_parameters(self, fit: Any) -> Any:
        return fit.state.algorithm.parameters

    def to_arviz(self, fit: Any, *args: Any, **options: Any) -> Any:
        return self.backend.public.to_arviz(fit.engine, fit.state, *args, **options)


@cache
def face_of(package: str) -> Any:
    """The face of a package: "pyro" or "numpyro"."""
    return {"pyro": PyroFace, "numpyro": NumPyroFace}[package]()


#: Latents of :func:`model_of`, unconstrained.
DIM = 5


@cache
def model_of(package: str) -> Any:
    """Sites on purpose not in alphabetical order, with transforms that change the shape."""
    face = face_of(package)
    host, dist = face.host, face.dist

    def model() -> None:
        host.sample("z", dist.Normal(face.zeros(2), 1.0).to_event(1))
        host.sample("a", dist.LogNormal(0.0, 1.0))
        host.sample("p", dist.Dirichlet(face.ones(3)))

    return model


def divergence(mean: Any, covariance: Any, other_mean: Any, other_covariance: Any) -> float:
    """Nats from a Normal to another one, KL(first | other)."""
    precision = np.linalg.inv(other_covariance)
    offset = np.asarray(mean) - other_mean
    volume = np.linalg.slogdet(precision @ covariance)[1]
    quadratic = np.trace(precision @ covariance) + offset @ precision @ offset
    return float(0.5 * (quadratic - len(offset) - volume))


# -- checks that several guides share ------------------------------------------------------------


def check_close(found: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """See that dictionaries or tuples of arrays are alike."""
    if isinstance(found, Mapping):
        assert found.keys() == expected.keys()
        pairs = [(found[name], expected[name]) for name in found]
    else:
        pairs = list(zip(found, expected, strict=True))
    for a, b in pairs:
        if isinstance(a, Mapping | tuple | list):
            check_close(a, b, rtol, atol)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def check_log_prob_and_score(
    face: Any, density: Any, parameters: Any, mean: Any, covariance: Any, seed: int = 1
) -> None:
    """A Normal guide's densities and scores are those of the dense Normal, at any axes."""
    from scipy import stats

    dim = len(mean)
    theta = normal(seed, 6, dim)
    expected = stats.multivariate_normal(mean, covariance).logpdf(theta)
    found = face.call(density.log_prob, parameters, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    score = -np.linalg.solve(covariance, (theta - mean).T).T
    np.testing.assert_allclose(face.call(density.score, parameters, theta), score, rtol=1e-9)
    # A single point, and more than one leading dimension.
    for points in (theta[0], theta.reshape(2, 3, dim)):
        lead = points.shape[:-1]
        number = int(np.prod(lead))
        found = face.call(density.score, parameters, points)
        np.testing.assert_allclose(found, score[:number].reshape(points.shape), rtol=1e-9)
        found = face.call(density.log_prob, parameters, points)
        np.testing.assert_allclose(found, expected[:number].reshape(lead), rtol=1e-11)
    # Through the host's own posterior.
    posterior = face.posterior(density, parameters)
    found = face.numpy(posterior.log_prob(face.array(theta.reshape(2, 3, dim))))
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-11)


def check_residual_gradient(face: Any, density: Any, parameters: Any, seed: int = 1) -> None:
    """The residual and its gradient are those of the host's log density differentiated twice."""
    theta, target = normal(seed, 2, 3, density.dim)
    found = face.call(density.mean_square_residual, parameters, theta, target)
    automatic = face.automatic(density.guide)
    expected = face.call(automatic.mean_square_residual, parameters, theta, target)
    assert found[1].keys() == parameters.keys()
    check_close(found, expected)


def check_moments_of_draws(draws: np.ndarray, mean: Any, covariance: Any) -> None:
    """Mean and covariance of draws, within five standard errors."""
    number, dim = draws.shape
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    for values, expected in [(centred, np.zeros(dim)), (products, covariance)]:
        standard_error = values.std(0) / number**0.5
        assert (np.abs(values.mean(0) - expected) < 5 * standard_error).all()


def check_score_identities(theta: np.ndarray, score: np.ndarray) -> None:
    """E[score] = 0 and E[theta score^T] = -I hold for draws from the very density only."""
    number, dim = theta.shape
    products = theta[:, :, None] * score[:, None, :]
    for draws, expected in [(score, np.zeros(dim)), (products, -np.eye(dim))]:
        standard_error = draws.std(0) / number**0.5
        assert (np.abs(draws.mean(0) - expected) < 5 * standard_error).all()


def check_svi_goes_on(face: Any, density: Any, parameters: Any, model: Any, *args: Any) -> None:
    """Adam's first step is the learning rate, from where we left the guide, in every parameter."""
    after, before = face.svi_step(density, parameters, model, *args), face.numpy(parameters)
    assert after.keys() == before.keys()
    for name, value in after.items():
        assert 0 < np.abs(value - before[name]).max() < 1.1 * RATE, name


def check_single_precision(face: Face, density: Any, rank: int) -> None:
    """W W' of a million times the diagonal: |z|^2 less what W explains of it was off by nats."""
    dim = density.dim
    # Numbers that single precision holds.
    factor = (1e3 * normal(0, dim, rank)).astype(np.float32)
    values = {"loc": np.zeros(dim), "scale": np.ones(dim), "cov_factor": factor.astype(float)}
    parameters = face.constrained(density, values)
    theta = (normal(1, 30, rank) @ factor.T + normal(2, 30, dim)).astype(np.float32)
    expected = face.call(density.log_prob, parameters, theta.astype(float))
    found = face.call(density.log_prob, face.single(parameters), theta)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0.02)
