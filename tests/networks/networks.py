"""One small network in every library, with weights that are given, and programs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: 3 inputs, 4 tanh units, one output: weights by layer, units first, and biases.
GENERATOR = np.random.default_rng(5)
WEIGHTS = [GENERATOR.normal(size=(4, 3)), GENERATOR.normal(size=(1, 4))]
BIASES = [GENERATOR.normal(size=4), GENERATOR.normal(size=1)]
LIBRARIES = {"pyro": ("torch",), "numpyro": ("nnx", "linen", "equinox")}
#: Paths of the layers, names of a layer's weights, and whether these have their units last.
LAYERS = {
    "torch": ("0", "2"),
    "nnx": ("layers.0", "layers.2"),
    "linen": ("fc1", "fc2"),
    "equinox": ("layers.0", "layers.1"),
}


def weight_name(library: str) -> str:
    return "weight" if library in ("torch", "equinox") else "kernel"


def weights(library: str) -> dict[str, np.ndarray]:
    """The weights by parameter name, in the library's shapes."""
    units_first = weight_name(library) == "weight"
    found = {}
    for path, weight, bias in zip(LAYERS[library], WEIGHTS, BIASES, strict=True):
        found[f"{path}.{weight_name(library)}"] = weight if units_first else weight.T
        found[f"{path}.bias"] = bias
    return found


def output(values: Mapping[str, np.ndarray], library: str, x: np.ndarray) -> np.ndarray:
    """What the network gives (N,) with values by parameter name."""
    first, second = LAYERS[library]
    name = weight_name(library)
    turn = np.transpose if name == "weight" else np.asarray
    hidden = np.tanh(x @ turn(values[f"{first}.{name}"]) + values[f"{first}.bias"])
    return (hidden @ turn(values[f"{second}.{name}"]) + values[f"{second}.bias"])[:, 0]


def module(backend: Any, library: str) -> tuple[Any, dict[str, Any]]:
    """The network, and what ``random_module`` has to be told besides."""
    values = {name: backend.array(value) for name, value in weights(library).items()}
    if library == "torch":
        import torch

        made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        made.load_state_dict(values)
        return made, {}
    import jax
    import jax.numpy as jnp

    if library == "nnx":
        from flax import nnx

        rngs = nnx.Rngs(0)
        made = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), jnp.tanh, nnx.Linear(4, 1, rngs=rngs))
        for path in (0, 2):
            for name in ("kernel", "bias"):
                getattr(made.layers[path], name).set_value(values[f"layers.{path}.{name}"])
        return made, {}
    if library == "linen":
        import flax.linen as nn

        class Network(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                return nn.Dense(1, name="fc2")(jnp.tanh(nn.Dense(4, name="fc1")(x)))

        layers: dict[str, Any] = {}
        for name, value in values.items():
            path, leaf = name.split(".")
            layers.setdefault(path, {})[leaf] = value
        return Network(), {"variables": {"params": layers}}
    import equinox

    made = equinox.nn.MLP(3, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    where = lambda net: [getattr(layer, n) for layer in net.layers for n in ("weight", "bias")]  # noqa: E731
    return equinox.tree_at(where, made, list(values.values())), {}


def program(
    backend: Any, library: str, prior: Any, noise: float = 0.5, name: str = "net"
) -> Callable[..., None]:
    """Regression of rows on the network's output."""
    host, dist = backend.host, backend.dist
    made, options = module(backend, library)

    def regression(x: Any, y: Any = None) -> None:
        net = backend.public.random_module(name, made, prior, **options)
        if library == "equinox":
            import jax

            net = jax.vmap(net)
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(net(x)[:, 0], noise), obs=y)

    return regression
