"""Networks as programs: densities by hand in float64, names, and the prior of each parameter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.networks import priors
from ppl_ext.networks.parameters import Parameter, prior_by_pattern
from tests.backends import backend_of, use_float64
from tests.networks import networks

use_float64()

X = np.random.default_rng(1).normal(size=(6, 3))
Y = np.random.default_rng(2).normal(size=6)


def normal(value: np.ndarray, centre: Any, scale: float) -> float:
    return float(stats.norm.logpdf(value, centre, scale).sum())


def density_of(values: dict[str, np.ndarray], library: str, rule: str) -> float:
    """The log density of the prior at values, by hand."""
    found, given = 0.0, networks.weights(library)
    for name, value in values.items():
        fan_in = 1 if value.ndim == 1 else value.size // (4 if len(value.ravel()) == 12 else 1)
        scale = 1.5 / np.sqrt(fan_in)
        if rule == "normal":
            found += normal(value, 0.0, scale)
        elif rule == "student":
            found += float(stats.t.logpdf(value, 4.0, 0.0, scale).sum())
        elif rule == "pretrained":
            found += normal(value, given[name], 0.3)
        else:
            found += normal(value, 0.0, 2.0)
    return found


def priors_of(backend: Any) -> dict[str, Any]:
    return {
        "normal": priors.ScaledNormal(1.5),
        "student": priors.ScaledStudentT(4.0, 1.5),
        "pretrained": priors.Pretrained(0.3),
        "distribution": backend.dist.Normal(0.0, 2.0),
        "function": lambda name, shape: (
            None if name.endswith("bias") else backend.dist.Normal(0, 2.0)
        ),
    }


# All priors in each package's first library, and one in the others: they share all but the walk.
CASES = [
    pytest.param(library, rule, id=f"{library}-{rule}")
    for library, rules in {
        "torch": ("normal", "student", "pretrained", "distribution", "function"),
        "nnx": ("normal", "student", "pretrained", "function"),
        "linen": ("normal", "function"),
        "equinox": ("normal", "function"),
    }.items()
    for rule in rules
]


@pytest.mark.parametrize(("library", "rule"), CASES)
def test_the_density_is_that_of_prior_and_network(backend: Any, library: str, rule: str) -> None:
    if library not in networks.LIBRARIES[backend.name]:
        return
    model = networks.program(backend, library, priors_of(backend)[rule])
    target, data = backend.target(model, backend.arrays((X, Y)))
    drawn = [name for name in networks.weights(library) if rule != "function" or "bias" not in name]
    assert sorted(target.layout.names) == sorted(f"net.{name}" for name in drawn)
    z = np.random.default_rng(3).normal(size=(1, target.dim))
    found = backend.compiled(target.log_density)(backend.array(z), data)
    sites = {
        name.removeprefix("net."): backend.numpy(value)[0]
        for name, value in target.constrain(backend.array(z), data).items()
    }
    values = {**networks.weights(library), **sites}
    expected = density_of(sites, library, rule)
    expected += normal(Y, networks.output(values, library, X), 0.5)
    np.testing.assert_allclose(backend.numpy(found)[0], expected, rtol=1e-10)


def parameters(*names: str) -> dict[str, Parameter]:
    return {name: Parameter(name, (2,), (), (), 0.0, None) for name in names}


def test_patterns_go_by_name_then_by_order() -> None:
    found = prior_by_pattern(
        {"*.bias": 1, "head.*": 2, "head.bias": 3, "*": None},
        parameters("body.weight", "body.bias", "head.weight", "head.bias"),
    )
    assert found == {"body.weight": None, "body.bias": 1, "head.weight": 2, "head.bias": 3}


def test_patterns_without_parameters_and_parameters_without_patterns_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"found \['tail.\*'\], which fit none"):
        prior_by_pattern({"tail.*": 1, "*": 2}, parameters("head.weight"))
    with pytest.raises(ArgumentError, match=r"none for \['head.bias'\].*'\*': None"):
        prior_by_pattern({"*.weight": 1}, parameters("head.weight", "head.bias"))


def test_fan_in_and_centres(backend: Any) -> None:
    """Of every layer: inputs that a unit sums, and 1 where a scale of normalisation is."""
    found = {name: (each.fan_in, each.centre) for name, each in layers(backend).items()}
    weight, scale = ("weight", "weight") if backend.is_pyro else ("kernel", "scale")
    assert found.pop(f"convolution.{weight}") == (3 * 5 * 5, 0.0)
    assert found.pop("convolution.bias") == (1, 0.0)
    assert found.pop(f"linear.{weight}") == (6, 0.0)
    assert found.pop("linear.bias") == (1, 0.0)
    assert found.pop(f"norm.{scale}") == (1, 1.0)
    assert found.pop("norm.bias") == (1, 0.0)
    if backend.is_pyro:
        assert found.pop("embedding.weight") == (1, 0.0)
        assert found.pop("attention.in_proj_weight") == (8, 0.0)
        assert found.pop("attention.in_proj_bias") == (1, 0.0)
        assert found.pop("attention.out_proj.weight") == (8, 0.0)
    else:
        assert found.pop("embedding.embedding") == (1, 0.0)
        for name in ("query", "key", "value", "out"):
            assert found.pop(f"attention.{name}.kernel") == (8, 0.0)
    assert {figures for name, figures in found.items() if name.endswith("bias")} <= {(1, 0.0)}
    assert [name for name in found if not name.endswith("bias")] == []


@pytest.mark.parametrize("library", ["torch", "equinox"])
def test_scales_of_normalisation_over_several_axes_have_no_inputs(library: str) -> None:
    """As those over one axis, which are 1 before training."""
    if library == "torch":
        from torch import nn

        found = backend_of("pyro").room("networks.modules").take_apart(nn.LayerNorm((4, 3)))[0]
    else:
        import equinox

        take_apart = backend_of("numpyro").room("networks.modules").take_apart
        found = take_apart(equinox.nn.LayerNorm((4, 3)), None, None)[0]
    assert (found["weight"].shape, found["weight"].fan_in) == ((4, 3), 1)
    assert (found["weight"].units, found["weight"].centre) == ((), 1.0)


def test_attention_that_drops_out_is_refused() -> None:
    """Its copies have one stream of random numbers, and would have one mask for good."""
    from flax import nnx

    take_apart = backend_of("numpyro").room("networks.modules").take_apart
    x = np.ones((5, 3, 8))
    for options in ({"deterministic": True}, {"deterministic": False}):
        attention = nnx.MultiHeadAttention(
            2, 8, decode=False, dropout_rate=0.5, rngs=nnx.Rngs(0), **options
        )
        network = take_apart(attention, None, None)[1]({})
        if options["deterministic"]:
            np.testing.assert_allclose(network(x), attention(x), rtol=1e-6)
            continue
        with pytest.raises(ModelCheckError, match=r"dropout in \['rngs'\].*module\.eval\(\)"):
            network(x)


def test_layers_that_ask_for_random_numbers_without_a_use_are_taken() -> None:
    """The first state of a recurrent layer is zero, and `nnx.remat` writes counts anew."""
    from flax import nnx

    class Remade(nnx.Module):
        def __init__(self) -> None:
            self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0))

        @nnx.remat
        def __call__(self, x: Any) -> Any:
            return self.dropout(x)

    take_apart = backend_of("numpyro").room("networks.modules").take_apart
    x = np.ones((5, 3, 2), np.float32)
    for module in (nnx.RNN(nnx.LSTMCell(2, 4, rngs=nnx.Rngs(0))), Remade()):
        np.testing.assert_allclose(take_apart(module, None, None)[1]({})(x), module(x), rtol=1e-6)


def layers(backend: Any) -> dict[str, Parameter]:
    """Parameters of a module that has a layer of each kind."""
    take_apart = backend.room("networks.modules").take_apart
    if backend.is_pyro:
        from torch import nn

        made = nn.ModuleDict(
            {
                "convolution": nn.Conv2d(3, 7, 5),
                "linear": nn.Linear(6, 2),
                "norm": nn.LayerNorm(6),
                "embedding": nn.Embedding(10, 6),
                "attention": nn.MultiheadAttention(8, 2),
            }
        )
        return dict(take_apart(made)[0])
    from flax import nnx

    class Module(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.convolution = nnx.Conv(3, 7, (5, 5), rngs=rngs)
            self.linear = nnx.Linear(6, 2, rngs=rngs)
            self.norm = nnx.LayerNorm(6, rngs=rngs)
            self.embedding = nnx.Embed(10, 6, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)

    return dict(take_apart(Module(nnx.Rngs(0)), None, None)[0])


GROUPED = {
    "horseshoe": priors.Horseshoe(0.3, slab_scale=1.5, slab_df=5.0),
    "scales": priors.GroupScales(0.8, group="unit"),
}


@pytest.mark.parametrize("kind", GROUPED)
def test_groups_have_scales_of_their_own(backend: Any, kind: str) -> None:
    """The density of all sites and the network with unscaled weights times scales, by hand."""
    library = networks.LIBRARIES[backend.name][0]
    first = networks.LAYERS[library][0]
    weight = networks.weight_name(library)
    prior = {f"{first}.{weight}": GROUPED[kind], "*": None}
    target, data = backend.target(networks.program(backend, library, prior), backend.arrays((X, Y)))
    z = np.random.default_rng(3).normal(size=(1, target.dim))
    found = backend.compiled(target.log_density)(backend.array(z), data)
    sites = {
        name.removeprefix(f"net.{first}.{weight}."): backend.numpy(value)[0]
        for name, value in target.constrain(backend.array(z), data).items()
    }
    unscaled, local = sites.pop("unscaled"), sites["local"]
    expected = normal(unscaled, 0.0, 1.0)
    # The logarithm is the unconstrained space of all scales.
    expected += float(sum(np.log(value).sum() for value in sites.values()))
    if kind == "horseshoe":
        slab = sites["slab"]
        scales = sites["global"] * local * np.sqrt(slab)
        scales /= np.sqrt(slab + sites["global"] ** 2 * local**2)
        expected += float(stats.halfcauchy.logpdf(local).sum())
        expected += float(stats.halfcauchy.logpdf(sites["global"], scale=0.3))
        expected += float(stats.invgamma.logpdf(slab, 2.5, scale=2.5 * 1.5**2))
        assert local.shape == (3,)
    else:
        scales = local
        expected += float(stats.halfcauchy.logpdf(local, scale=0.8 / np.sqrt(3)).sum())
        assert local.shape == (4,)
    # Inputs are last in torch, units in flax.
    last = (kind == "horseshoe") == backend.is_pyro
    weights = unscaled * (scales if last else scales[:, None])
    values = {**networks.weights(library), f"{first}.{weight}": weights}
    expected += normal(Y, networks.output(values, library, X), 0.5)
    np.testing.assert_allclose(backend.numpy(found)[0], expected, rtol=1e-10)
    draws = {f"net.{first}.{weight}.{name}": value[None] for name, value in sites.items()}
    ours = priors.group_scales(draws, f"net.{first}.{weight}")
    np.testing.assert_allclose(ours[0], scales, rtol=1e-12)


def test_the_global_scale_is_that_of_piironen_and_vehtari() -> None:
    assert priors.global_scale(10, 100, 400, 0.5) == pytest.approx(10 / 90 * 0.5 / 20)


def test_scales_may_be_latent(backend: Any) -> None:
    library = networks.LIBRARIES[backend.name][0]
    made, options = networks.module(backend, library)
    host, dist = backend.host, backend.dist

    def hierarchical(x: Any, y: Any) -> None:
        scale = host.sample("scale", dist.LogNormal(backend.array(0.0), 1.0))
        prior = {"*.bias": None, "*": priors.ScaledNormal(scale)}
        net = backend.public.random_module("net", made, prior, **options)
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(net(x)[:, 0], 0.5), obs=y)

    target, data = backend.target(hierarchical, backend.arrays((X, Y)))
    z = np.random.default_rng(3).normal(size=(1, target.dim))
    found = backend.numpy(backend.compiled(target.log_density)(backend.array(z), data))[0]
    sites = target.constrain(backend.array(z), data)
    values = {name: backend.numpy(value)[0] for name, value in sites.items()}
    scale = float(values.pop("scale"))
    expected = normal(np.log(scale), 0.0, 1.0)
    for value in values.values():
        expected += normal(
            value, 0.0, scale / np.sqrt(value.size // (4 if value.size == 12 else 1))
        )
    given = {name.removeprefix("net."): value for name, value in values.items()}
    output = networks.output({**networks.weights(library), **given}, library, X)
    np.testing.assert_allclose(found, expected + normal(Y, output, 0.5), rtol=1e-10)


def test_weights_that_torch_would_not_train_are_told() -> None:
    import torch

    backend = backend_of("pyro")
    host, dist = backend.host, backend.dist
    network = torch.nn.Linear(3, 1)
    network.bias.requires_grad_(False)

    def model(x: Any, y: Any, prior: Any) -> None:
        net = backend.public.random_module("net", network, prior)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    own = dist.Normal(0.0, 1.0)
    data = (backend.array(X), backend.array(Y))
    held, _ = backend.target(model, (*data, {"weight": own, "bias": None}))
    assert held.layout.names == ("net.weight",)
    with pytest.warns(backend.public.HeldParameterWarning, match=r"requires_grad=False.*'bias'"):
        target, _ = backend.target(model, (*data, own))
    assert target.layout.names == ("net.weight", "net.bias")
    # Said once.
    backend.target(model, (*data, own))
