"""The model check: faults that only NumPyro's models have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.module import random_flax_module, random_nnx_module
from numpyro.infer import init_to_uniform

from numpyro_ext.density import LogDensity, check_model
from ppl_ext.errors import ArgumentError, EvaluationWarning, ModelCheckError
from tests.backends import backend_of
from tests.density_support import host_words

KEY, NUMPYRO = random.key(0), backend_of("numpyro")
X, Y = jnp.ones((5, 2)), jnp.arange(5.0)

Model = Callable[..., Any]


def our_error(model: Model, *args: Any, **options: Any) -> str:
    with pytest.raises(ModelCheckError) as raised:
        check_model(model, KEY, args, **options)
        # What the check lets through, tracing the density must catch.
        LogDensity(model, KEY, args)
    return str(raised.value)


def iterated_plate() -> None:
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    for row in numpyro.plate("N", 5):
        numpyro.sample(f"y{row}", dist.Normal(z, 1.0), obs=Y[row])


def wrong_batch() -> None:
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", 10, subsample_size=4):
        numpyro.sample("y", dist.Normal(z, 1.0), obs=Y)


def test_iterated_plate() -> None:
    ours = our_error(iterated_plate)
    assert ours.startswith(host_words(NUMPYRO, iterated_plate))
    assert "with numpyro.plate" in ours


def test_numpy_and_shapes_of_latents() -> None:
    def through_numpy() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("f", np.exp(np.asarray(z)))

    def as_length() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("f", jnp.zeros(int(abs(z)) + 1).sum())

    assert "Use jax.numpy" in our_error(through_numpy)
    assert "concrete value of a latent" in our_error(as_length)


class Network(nnx.Module):
    def __init__(self, *, dropout: bool = False, normalise: bool = False) -> None:
        rngs = nnx.Rngs(0)
        self.dense = nnx.Linear(2, 1, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs) if dropout else None
        self.norm = nnx.BatchNorm(2, rngs=rngs) if normalise else None

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.norm is not None:
            x = self.norm(x)
        if self.dropout is not None:
            x = self.dropout(x)
        return self.dense(x)[..., 0]


def test_arrays_kept_from_an_earlier_run() -> None:
    @functools.cache
    def location() -> jax.Array:
        return jnp.arange(3.0)

    def model() -> None:
        numpyro.sample("z", dist.Normal(location(), 1.0))

    assert "functools.cache" in our_error(model)
    kept = location.__wrapped__()
    assert LogDensity(lambda: numpyro.sample("z", dist.Normal(kept, 1.0)), KEY).dim == 3


def test_network_inside_a_data_plate() -> None:
    def crashes() -> None:
        with numpyro.plate("N", 5):
            net = random_nnx_module("net", Network(), dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(net(X), 1.0), obs=Y)

    def runs() -> None:
        with numpyro.plate("N", 5):
            net = random_flax_module(
                "net", linen.Dense(1, use_bias=False), dist.Normal(0.0, 1.0), input_shape=(1,)
            )
            # Broadcasting hides the fault here: five networks, each for one row.
            numpyro.sample("y", dist.Normal(net(jnp.ones((5, 1, 1)))[:, 0, 0], 1.0), obs=Y)

    assert "dot_general" in host_words(NUMPYRO, crashes)
    for model in (crashes, runs):
        ours = our_error(model)
        assert ours.startswith("Network 'net' is made inside data plate 'N'")
        assert "before the plate" in ours


def test_network_before_the_plate_is_fine() -> None:
    def model(batch: int | None = 2) -> None:
        net = random_nnx_module("net", Network(), dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 5, subsample_size=batch) as rows:
            numpyro.sample("y", dist.Normal(net(X[rows]), 1.0), obs=Y[rows])

    assert check_model(model, KEY).layout.names == ("net/dense.bias", "net/dense.kernel")


def test_batch_normalisation_in_train_mode() -> None:
    def nnx_model(module: Any) -> Model:
        def model() -> None:
            net = random_nnx_module("net", module, dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(net(X), 1.0).to_event(1), obs=Y)

        return model

    class Linen(linen.Module):
        train: bool

        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.BatchNorm(use_running_average=not self.train)(x)
            return linen.Dense(1)(x)[..., 0]

    def linen_model(train: bool) -> Model:
        def model() -> None:
            net = random_flax_module(
                "net",
                Linen(train),
                dist.Normal(0.0, 1.0),
                input_shape=(5, 2),
                mutable=["batch_stats"],
            )
            numpyro.sample("y", dist.Normal(net(X), 1.0).to_event(1), obs=Y)

        return model

    for model in (nnx_model(Network(normalise=True)), linen_model(True)):
        ours = our_error(model)
        assert "'net$state'" in ours and "train mode" in ours and "evaluation mode" in ours
    evaluating = Network(normalise=True)
    evaluating.eval()
    for model in (nnx_model(evaluating), linen_model(False)):
        target = LogDensity(model, KEY)
        score = target.score(jnp.zeros((2, target.dim)), target.bind())
        assert np.isfinite(score.score).all()
    with pytest.warns(EvaluationWarning, match="same draw"):
        check_model(nnx_model(Network(dropout=True)), KEY)


def test_batch_that_fits_no_plate() -> None:
    theirs = host_words(NUMPYRO, wrong_batch)
    assert theirs.startswith("Incompatible shapes for broadcasting")
    with pytest.raises(ArgumentError) as raised:
        check_model(wrong_batch, KEY)
    ours = str(raised.value)
    assert theirs in ours
    assert "Site 'y' does not fit plate 'N' (size 10, subsample_size 4): expected 4 rows" in ours
    assert "numpyro.plate('N', 10, subsample_size=x.shape[0])" in ours


def test_arrays_that_do_not_fit_a_full_plate() -> None:
    def model(x: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 30):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    words = r"'y' does not fit plate 'N' \(size 30\): expected 30 rows, found"
    for x, y, found in (
        (20, 20, r"observations of shape \(20,\)"),
        (30, 20, r"observations of shape \(20,\)"),
        (20, 30, r"a distribution of batch shape \(20,\)"),
    ):
        with pytest.raises(ArgumentError, match=f"{words} {found}"):
            check_model(model, KEY, (jnp.zeros(x), jnp.zeros(y)))


def test_subsample_larger_than_the_plate() -> None:
    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 3, subsample_size=5):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    assert "size 3 but asks for subsample_size=5" in our_error(model)


def test_batch_passed_to_a_model_that_looks_its_rows_up() -> None:
    def model(y: jax.Array, group: jax.Array) -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("N", 100, subsample_size=4) as rows:
            # A look-up of a look-up (two groups) is no fault.
            mean = z + effect[group[rows]]
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.take(y, rows, axis=0))

    group = jnp.zeros(100, int)
    assert check_model(model, KEY, (jnp.zeros(100), group)).plates["N"].size == 100
    ours = our_error(model, jnp.zeros(10), group)
    assert "'N' has 100 rows" in ours and "only 10 rows" in ours


def test_numpy_array_indexed_by_a_plate() -> None:
    closed_over = np.arange(5.0)

    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 5, subsample_size=2) as rows:
            numpyro.sample("y", dist.Normal(z, 1.0), obs=closed_over[rows])

    assert "jnp.asarray" in our_error(model)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_subsampled_plate_inside_scan(scale: float) -> None:
    def build(subsample_size: int | None) -> Model:
        def model() -> None:
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))

            def step(carry: None, y: jax.Array) -> tuple[None, None]:
                with handlers.scale(scale=scale):
                    with numpyro.plate("N", 4, subsample_size=subsample_size) as rows:
                        numpyro.sample("y", dist.Normal(z, 1.0), obs=y[rows])
                return None, None

            with handlers.scale(scale=0.5):
                scan(step, None, jnp.ones((3, 4)))

        return model

    ours = our_error(build(2))
    assert "'y'" in ours and "scan" in ours and "'N'" in ours
    assert check_model(build(None), KEY).observed_sites == ("y",)


def test_parameters_that_are_not_valid_are_named_by_numpyro() -> None:
    def model(spread: jax.Array) -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        # Log densities of negative concentrations may well be finite.
        numpyro.sample("p", dist.Dirichlet(2.0 * spread).to_event(0), obs=jnp.ones(3) / 3)
        numpyro.sample("y", dist.Normal(z, 1.0), obs=0.1)

    LogDensity(model, KEY, (np.ones(3),))
    with pytest.raises(ValueError, match="Dirichlet distribution got invalid concentration"):
        LogDensity(model, KEY, (np.array([1.0, -2.5, 1.0]),))


def test_invalid_parameters_at_the_first_values_alone_are_passed_by() -> None:
    def model() -> None:
        growth = numpyro.sample("growth", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Poisson(1.0 + 2.0 * growth, validate_args=True), obs=3)

    keys = [random.key(number) for number in range(8)]
    # Of the first values of eight keys some are below -0.5.
    refused = 0
    for key in keys:
        try:
            first = handlers.substitute(handlers.seed(model, key), substitute_fn=init_to_uniform)
            first()
        except ValueError:
            refused += 1
        assert LogDensity(model, key).dim == 1
    assert 0 < refused < 8


def test_parameters_that_are_not_valid_at_some_latent_values_are_drawn_again() -> None:
    def model() -> None:
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(0.0, z, validate_args=True), obs=0.1)

    target = LogDensity(model, random.key(1), check=False)
    z = target.initial_positions(8, KEY, target.bind())
    assert np.all(np.asarray(z) > 0.0)
