"""Flipout and the local reparameterisation, against closed forms and plain draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.errors import ArgumentError
from ppl_ext.scalars import square_root
from tests.backends import backend_of, use_float64

use_float64()

DRAWS = np.random.default_rng(0)
ROWS, INPUTS, OUTPUTS, NOISE = 32, 4, 3, 0.5
X = DRAWS.normal(size=(ROWS, INPUTS)) + 0.5
LOC = DRAWS.normal(size=(INPUTS, OUTPUTS))
SCALE = DRAWS.uniform(0.1, 0.4, (INPUTS, OUTPUTS))
Y = X @ LOC + NOISE * DRAWS.normal(size=(ROWS, OUTPUTS))
METHODS = ["flipout", "local_reparameterization"]


def methods(backend: Any) -> list[Any]:
    return [getattr(backend.room("guides"), name) for name in METHODS]


def weights(backend: Any, name: str, *shape: int) -> Any:
    standard = backend.dist.Normal(backend.xp.zeros(shape), 1.0)
    return backend.host.sample(name, standard.to_event(len(shape)))


def model_of(backend: Any, function: Callable[..., Any]) -> Any:
    """A regression on a function of the weights and the inputs."""
    x, y = backend.arrays((X, Y))

    def model() -> None:
        w = weights(backend, "w", INPUTS, OUTPUTS)
        with backend.host.plate("N", ROWS):
            normal = backend.dist.Normal(function(w, x), NOISE)
            backend.host.sample("y", normal.to_event(1), obs=y)

    return model


def regression(backend: Any) -> Any:
    return model_of(backend, lambda w, x: x @ w)


# -- gradients -------------------------------------------------------------------------------------


def exact_gradients() -> list[np.ndarray]:
    """Of the negative evidence lower bound of the regression, in means and deviations."""
    location = LOC - X.T @ (Y - X @ LOC) / NOISE**2
    scale = SCALE - 1.0 / SCALE + np.square(X).sum(0)[:, None] * SCALE / NOISE**2
    return [location.reshape(-1), scale.reshape(-1)]


def gradients_of_pyro(
    backend: Any, name: str, objectives: list[Any], number: int
) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Draws (S, K) of the gradient in each parameter for each objective, and exact gradients."""
    import torch

    backend.host.set_rng_seed(0)
    model = regression(backend)
    guide = getattr(backend.autoguide, name)(model)
    guide()
    if name == "AutoNormal":
        guide.locs.w.data.copy_(torch.tensor(LOC))
        guide.scales.w = torch.tensor(SCALE)
        scale = guide.scales.w
    else:
        guide.loc.data.copy_(torch.tensor(LOC).reshape(-1))
        guide.scale = torch.tensor(SCALE).reshape(-1)
        scale = guide.scale
    parameters = list(guide.parameters())
    exact = exact_gradients()
    # The guide's own coordinates are unconstrained.
    outer = torch.tensor(exact[1]).reshape(scale.shape)
    (exact[1],) = torch.autograd.grad(scale, parameters[1], outer)
    draws = []
    for elbo in objectives:
        found = []
        for _ in range(number):
            guide.zero_grad()
            elbo.loss_and_grads(model, guide)
            found.append([value.grad.reshape(-1).numpy().copy() for value in parameters])
        draws.append([np.stack(values) for values in zip(*found, strict=True)])
    return draws, [np.asarray(each).reshape(-1) for each in exact]


def gradients_of_numpyro(
    backend: Any, name: str, objectives: list[Any], number: int
) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """The same, in the host's constrained coordinates."""
    import jax

    model = regression(backend)
    guide = getattr(backend.autoguide, name)(model)
    if name == "AutoNormal":
        params = {"w_auto_loc": LOC, "w_auto_scale": SCALE}
    else:
        params = {"auto_loc": LOC.reshape(-1), "auto_scale": SCALE.reshape(-1)}
    with backend.handlers.seed(rng_seed=0):
        guide._setup_prototype()

    @jax.jit
    @jax.vmap
    def draw(key: Any) -> Any:
        found = []
        for elbo in objectives:
            grad = jax.grad(lambda p, elbo=elbo: elbo.loss(key, p, model, guide))(params)
            found.append([grad[name].reshape(-1) for name in params])
        return found

    draws = draw(jax.random.split(backend.key(), number))
    return [list(map(np.asarray, each)) for each in draws], exact_gradients()


@pytest.mark.parametrize("name", ["AutoNormal", "AutoDiagonalNormal"])
def test_gradients_are_unbiased_and_quieter(backend: Any, name: str) -> None:
    plain_elbo = backend.host.infer.Trace_ELBO
    objectives = [plain_elbo(), *(method(plain_elbo(), ["w"]) for method in methods(backend))]
    # torch takes one after another.
    number, gradients = (
        (400, gradients_of_pyro) if backend.is_pyro else (2000, gradients_of_numpyro)
    )
    draws, exact = gradients(backend, name, objectives, number)
    variances = []
    for found in draws:
        for values, expected in zip(found, exact, strict=True):
            error = np.abs(values.mean(0) - expected)
            assert (error < 5 * values.std(0) / number**0.5).all()
        variances.append([float(values.var(0).sum()) for values in found])
    plain, flipped, local = variances
    # Rows have noise of their own, over which the gradient in the mean is averaged.
    assert flipped[0] < plain[0] / 4 and local[0] < plain[0] / 4
    # In the scale flipout's rows share the squares of the weights' noise.
    assert flipped[1] < plain[1] and local[1] < plain[1] / 4


# -- outputs ---------------------------------------------------------------------------------------


def outputs(backend: Any, model: Any, method: Any, **sites: np.ndarray) -> np.ndarray:
    """Draws of the mean of the observed site, under a guide with these standard deviations."""
    host, handlers = backend.host, backend.handlers

    def guide() -> None:
        for name, scale in sites.items():
            normal = backend.dist.Normal(0.3 + backend.xp.zeros(scale.shape), backend.array(scale))
            host.sample(name, normal.to_event(scale.ndim))

    elbo = None if method is None else method(host.infer.Trace_ELBO())

    def single(*keys: Any) -> Any:
        noisy, recorded = (model, guide) if elbo is None else elbo._handled(model, guide)
        if keys:
            noisy, recorded = handlers.seed(noisy, keys[0]), handlers.seed(recorded, keys[1])
        drawn = handlers.trace(recorded).get_trace()
        trace = handlers.trace(handlers.replay(noisy, trace=drawn)).get_trace()
        if keys:
            assert trace.keys() >= {"N", "y", *sites}
            assert trace["y"]["cond_indep_stack"][0].name == "N"
        drawn, trace = (getattr(each, "nodes", each) for each in (drawn, trace))
        assert all(trace[name]["value"] is drawn[name]["value"] for name in sites)
        observed = trace["y"]["fn"]
        return getattr(observed, "base_dist", observed).loc

    if backend.is_pyro:  # one after another
        host.set_rng_seed(0)
        return np.stack([backend.numpy(single()) for _ in range(2000)])
    import jax

    keys = jax.random.split(backend.key(), (5000, 2))
    # One after another as well: a convolution with weights for each draw is slow.
    return np.asarray(jax.jit(lambda keys: jax.lax.map(lambda pair: single(*pair), keys))(keys))


def assert_same_moments(found: np.ndarray, expected: np.ndarray) -> None:
    """Mean and covariance of two samples (S, K) agree within Monte Carlo error."""
    products = []
    for values in (found, expected):
        centred = values - values.mean(0)
        products.append(centred[:, :, None] * centred[:, None, :])
    for one, other in ((found, expected), tuple(products)):
        error = np.sqrt(one.var(0) / len(one) + other.var(0) / len(other))
        assert (np.abs(one.mean(0) - other.mean(0)) < 5 * error).all()


def hidden_layers(backend: Any, x: Any) -> list[Any]:
    """Of a convolution (N, C, L) with (O, C, W), and of a transposed one."""
    kernel, back = weights(backend, "k", 3, 2, 2), weights(backend, "b", 3, 1, 2)
    if backend.is_pyro:
        from torch.nn import functional

        hidden = backend.xp.tanh(functional.conv1d(x, kernel, backend.xp.ones(3)))
        again = functional.conv_transpose1d(hidden, back)
        return [hidden.flatten(1), again.flatten(1)]
    from jax import lax

    names = ("NCH", "OIH", "NCH")
    hidden = lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=names)
    hidden = backend.xp.tanh(hidden + 1.0)
    again = lax.conv_transpose(
        hidden, back, (1,), "VALID", dimension_numbers=names, transpose_kernel=True
    )
    return [hidden.reshape(3, -1), again.reshape(3, -1)]


def test_rows_keep_their_distribution_and_lose_their_correlation(backend: Any) -> None:
    """Convolutions with several places, and a weight that is applied twice, once transposed."""
    xp, draws = backend.xp, np.random.default_rng(1)
    x = backend.array(draws.normal(size=(3, 2, 4)))

    def model() -> None:
        hidden = hidden_layers(backend, x)
        w = weights(backend, "w", 9, 2)
        found = xp.concatenate([*hidden, xp.tanh(hidden[0] @ w) @ w.T], -1)
        with backend.host.plate("N", 3):
            normal = backend.dist.Normal(found, 1.0).to_event(1)
            backend.host.sample("y", normal, obs=xp.zeros(tuple(found.shape)))

    shapes = {"k": (3, 2, 2), "b": (3, 1, 2), "w": (9, 2)}
    scales = {name: draws.uniform(0.3, 1.0, shape) for name, shape in shapes.items()}
    plain = outputs(backend, model, None, **scales)
    found = outputs(backend, model, methods(backend)[0], **scales)
    for row in range(3):
        assert_same_moments(found[:, row], plain[:, row])
    size = plain.shape[-1]

    def correlation(values: np.ndarray) -> float:
        return np.abs(np.corrcoef(values[:, 0].T, values[:, 1].T)[:size, size:]).max()

    assert correlation(plain) > 0.3
    # Not zero: rows share the size of the weights' noise.
    assert correlation(found) < correlation(plain) / 4


def test_local_noise_has_the_variance_of_the_weights(backend: Any) -> None:
    """Of a vector of weights and of a matrix, with a row of zeros."""
    draws, xp = np.random.default_rng(2), backend.xp
    x = draws.normal(size=(3, 4))
    x[2] = 0.0

    def model() -> None:
        w, v = weights(backend, "w", 4, 2), weights(backend, "v", 4)
        rows = backend.array(x)
        result = xp.concatenate([rows @ w, (rows @ v)[:, None]], -1)
        with backend.host.plate("N", 3):
            normal = backend.dist.Normal(result, 1.0).to_event(1)
            backend.host.sample("y", normal, obs=xp.zeros((3, 3)))

    scales = {"w": draws.uniform(0.3, 1.0, (4, 2)), "v": draws.uniform(0.3, 1.0, 4)}
    found = outputs(backend, model, methods(backend)[1], **scales)
    number = len(found)
    both = np.concatenate([scales["w"], scales["v"][:, None]], -1)
    variance = np.square(x) @ np.square(both)
    error = np.abs(found.mean(0) - 0.3 * x.sum(-1, keepdims=True))
    # Rounding of the row of zeros.
    assert (error <= 5 * np.sqrt(variance / number) + 1e-12).all()
    assert (np.abs(found.var(0) - variance) <= 5 * variance * (2 / number) ** 0.5 + 1e-12).all()
    rows = found[:, :2].reshape(number, -1)
    correlations = np.corrcoef(rows.T) - np.eye(6)
    assert np.abs(correlations).max() < 5 / number**0.5


def test_a_row_without_noise_leaves_the_gradient_finite(backend: Any) -> None:
    slope = backend.transforms.grad(partial(square_root, backend.xp))
    assert [float(slope(backend.array(value))) for value in (0.0, 4.0)] == [0.0, 0.25]


def test_rows_of_a_minibatch_belong_together(backend: Any) -> None:
    """Fits to their own targets are near perfect only if both come from the same rows."""
    host, dist = backend.host, backend.dist
    w = np.random.default_rng(3).normal(size=(INPUTS, 1))

    def model(x: Any, y: Any) -> None:
        drawn = weights(backend, "w", INPUTS, 1)
        with host.plate("N", len(x), subsample_size=8) as rows:
            mean = host.deterministic("mean", (x[rows] @ drawn)[:, 0])
            host.sample("y", dist.Normal(mean, 1e-3), obs=y[rows])

    def guide(x: Any, y: Any) -> None:
        host.sample("w", dist.Normal(backend.array(w), 1e-9).to_event(2))

    elbo = methods(backend)[0](host.infer.Trace_ELBO())
    keys = () if backend.is_pyro else (backend.key(), {})
    loss = float(elbo.loss(*keys, model, guide, *backend.arrays((X, (X @ w)[:, 0]))))
    entropy = stats.norm(w, 1e-9).entropy().sum() + stats.norm.logpdf(w).sum()
    perfect = ROWS * stats.norm.logpdf(0.0, 0.0, 1e-3)
    assert -loss == pytest.approx(float(perfect + entropy), abs=INPUTS * 4)


# -- refusals --------------------------------------------------------------------------------------


def test_objectives_that_are_not_linear_are_refused(backend: Any) -> None:
    infer = backend.host.infer
    several = {"num_particles": 2, "vectorize_particles": True}
    options = several if backend.is_pyro else {"multi_sample_guide": True}
    for method in methods(backend):
        for elbo in (infer.RenyiELBO(), infer.Trace_ELBO(**options)):
            with pytest.raises(ArgumentError, match="linear in the log likelihood"):
                method(elbo)
        with pytest.raises(ArgumentError, match="list of names"):
            method(infer.TraceMeanField_ELBO(), "w")


def evaluate(backend: Any, method: Any, model: Any, guide: Any = None, **options: Any) -> None:
    """The objective of a method, as far as it takes to be refused."""
    infer = backend.host.infer
    elbo = method(infer.Trace_ELBO(), **options)
    guide = (guide or backend.autoguide.AutoNormal)(model)
    if backend.is_pyro:
        elbo.loss(model, guide)
        return
    import jax

    svi = infer.SVI(model, guide, backend.adam(0.1), elbo)
    jax.eval_shape(lambda: svi.update(svi.init(backend.key())))


def test_weights_that_are_not_met_are_refused(backend: Any) -> None:
    flipout, _ = methods(backend)
    scaled = model_of(backend, lambda w, x: x @ (2.0 * w))
    found = r"'w': \['.*mul" if backend.is_pyro else r"'w': \['mul'\]"
    for sites in (None, ["w"]):
        with pytest.raises(ArgumentError, match=f"product or convolution.*{found}"):
            evaluate(backend, flipout, scaled, sites=sites)
    with pytest.raises(ArgumentError, match=r"names of latent sites.*\['v'\]"):
        evaluate(backend, flipout, regression(backend), sites=["v"])
    if backend.is_pyro:
        other = model_of(backend, lambda w, x: backend.xp.einsum("ni,io->no", x, w))
    else:
        from jax import lax

        other = model_of(backend, lambda w, x: lax.map(lambda row: row @ w, x))
    words = "einsum" if backend.is_pyro else "scan"
    with pytest.raises(ArgumentError, match=rf"'w': \['{words}'\]"):
        evaluate(backend, flipout, other)


@pytest.mark.parametrize("number", range(2), ids=METHODS)
def test_weights_that_the_rows_do_not_have_alone_are_refused(backend: Any, number: int) -> None:
    xp, method = backend.xp, methods(backend)[number]
    with pytest.raises(ArgumentError, match=r"'w' in linear operations only.*sum"):
        evaluate(backend, method, model_of(backend, lambda w, x: x @ w + w.sum()))
    basis, mixing = xp.ones((5, INPUTS)), xp.ones((ROWS, 5))
    with pytest.raises(ArgumentError, match=r"length 5, to be the rows .*\[3, 32\]"):
        evaluate(backend, method, model_of(backend, lambda w, x: mixing @ (basis @ w)))


def test_guides_with_correlated_weights_are_refused(backend: Any) -> None:
    correlated = backend.autoguide.AutoMultivariateNormal
    with pytest.raises(ArgumentError, match="factorised Normal, found 'w' from Multivariate"):
        evaluate(backend, methods(backend)[0], regression(backend), correlated)


def test_local_noise_is_refused_where_it_is_not_exact(backend: Any) -> None:
    xp, (flipout, local) = backend.xp, methods(backend)
    square = model_of(backend, lambda w, x: xp.tanh(x @ w) @ w.T @ w)
    with pytest.raises(ArgumentError, match="applied once, found a second use"):
        evaluate(backend, local, square)
    evaluate(backend, flipout, square)
    places = model_of(backend, lambda w, x: (xp.stack([x, x + 1.0], 1) @ w).sum(1))
    with pytest.raises(ArgumentError, match="once a row, found 2 places"):
        evaluate(backend, local, places)
    evaluate(backend, local, places, independent_places=True)
    stacked = model_of(backend, lambda w, x: x @ w + (xp.concatenate([x, x]) @ w)[:ROWS])
    with pytest.raises(ArgumentError, match="one number of rows, found 32 and 64"):
        evaluate(backend, flipout, stacked)


# -- networks of each host -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AutoNormal", "AutoDiagonalNormal"])
def test_weights_of_pyros_networks_are_met(name: str) -> None:
    """A network made Bayesian in the host's way."""
    pytest.importorskip("torch")
    from pyro.nn import PyroModule, PyroSample
    from pyro.nn.module import to_pyro_module_
    from torch import nn

    backend = backend_of("pyro")
    pyro, infer, dist = backend.host, backend.host.infer, backend.dist
    flipout, local = methods(backend)

    class Network(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Unflatten(1, (1, INPUTS)), nn.Conv1d(1, 2, 2), nn.Flatten(1), nn.Linear(6, 1)
            )
            to_pyro_module_(self.body)
            for module in self.body.modules():
                for name, value in list(module.named_parameters(recurse=False)):
                    prior = dist.Normal(backend.xp.zeros(value.shape), 1.0).to_event(value.dim())
                    setattr(module, name, PyroSample(prior))

        def forward(self, x: Any, y: Any = None) -> Any:
            mean = self.body(x).squeeze(-1)
            with pyro.plate("N", len(x)):
                return pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    data = backend.arrays((X, Y[:, 0]))
    model = Network()
    guide = getattr(backend.autoguide, name)(model)
    guide(*data)
    names = ["body.1.weight", "body.3.weight"]
    for elbo in (
        flipout(infer.Trace_ELBO(num_particles=2), names),
        flipout(infer.TraceGraph_ELBO()),
        local(infer.TraceMeanField_ELBO(), names, independent_places=True),
    ):
        before = [value.detach().clone() for value in guide.parameters()]
        infer.SVI(model, guide, backend.adam(0.01), elbo).step(*data)
        after = list(guide.parameters())
        assert all((a != b).all() for a, b in zip(after, before, strict=True))
    # Torch's own way to an objective.
    assert elbo(model, guide)(*data).requires_grad


def network_of_numpyro(kind: str) -> Any:
    """A network of each of the libraries that NumPyro knows."""
    import jax
    from numpyro.contrib import module

    prior = backend_of("numpyro").dist.Normal(0.0, 1.0)
    if kind == "linen":
        from flax import linen

        class Linen(linen.Module):
            @linen.compact
            def __call__(self, x: Any) -> Any:
                x = linen.relu(linen.Conv(2, (2,))(x[..., None]))
                return linen.Dense(1)(x.reshape(len(x), -1))

        return module.random_flax_module("net", Linen(), prior, input_shape=(1, INPUTS))
    if kind == "nnx":
        from flax import nnx

        class Nnx(nnx.Module):
            def __init__(self) -> None:
                self.conv = nnx.Conv(1, 2, (2,), rngs=nnx.Rngs(0))
                self.dense = nnx.Linear(2 * INPUTS, 1, rngs=nnx.Rngs(0))

            def __call__(self, x: Any) -> Any:
                x = nnx.relu(self.conv(x[..., None]))
                return self.dense(x.reshape(len(x), -1))

        return module.random_nnx_module("net", Nnx(), prior)
    import equinox

    mlp = equinox.nn.MLP(INPUTS, 1, 3, 1, key=jax.random.key(0))
    return jax.vmap(module.random_eqx_module("net", mlp, prior))


@pytest.mark.parametrize("kind", ["linen", "nnx", "eqx"])
def test_weights_of_numpyros_networks_are_met(kind: str) -> None:
    jax = pytest.importorskip("jax")
    backend = backend_of("numpyro")
    numpyro, infer = backend.host, backend.host.infer
    flipout, _ = methods(backend)
    x, y = X, Y[:, 0]

    def model(x: Any, y: Any) -> None:
        mean = network_of_numpyro(kind)(x)[:, 0]
        with numpyro.plate("N", len(x)):
            numpyro.sample("y", backend.dist.Normal(mean, 1.0), obs=y)

    guide = backend.autoguide.AutoDiagonalNormal(model)

    def svi(elbo: Any) -> Any:
        return infer.SVI(model, guide, backend.adam(0.1), elbo)

    elbo = flipout(infer.TraceGraph_ELBO(num_particles=2))
    assert jax.eval_shape(lambda: svi(elbo).init(backend.key(), x, y)) is not None
    names = sorted(name for name, value in guide._init_locs.items() if np.ndim(value) > 1)
    assert len(names) == 2
    for each in (flipout(infer.Trace_ELBO(2), names), elbo):
        fit = svi(each)
        jax.eval_shape(lambda fit=fit: fit.update(fit.init(backend.key(), x, y), x, y))
