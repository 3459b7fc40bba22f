"""The networks in flax's nnx, with torchvision's names of layers; images have channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from benchmarks.vision.architectures import ARCHITECTURES, WIDTH, Transformer
from benchmarks.vision.architectures import ResNet as Sizes


def network(
    name: str, size: int, channels: int, classes: int, rngs: nnx.Rngs
) -> ResNet | VisionTransformer:
    """An architecture for images (n, size, size, channels).

    Its ``dropout``, before the last layer, drops nothing unless told to.
    """
    sizes = ARCHITECTURES[name]
    if isinstance(sizes, Transformer):
        return VisionTransformer(sizes, size, channels, classes, rngs)
    return ResNet(sizes, channels, classes, rngs)


def _convolution(inputs: int, filters: int, kernel: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    side, around = (kernel, kernel), kernel // 2
    return nnx.Conv(
        inputs,
        filters,
        side,
        (stride, stride),
        padding=((around, around), (around, around)),
        use_bias=False,
        kernel_init=jax.nn.initializers.variance_scaling(2.0, "fan_out", "normal"),
        rngs=rngs,
    )


def _normalised(features: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(features, momentum=0.9, epsilon=1e-5, rngs=rngs)


class Block(nnx.Module):
    """A residual block of two convolutions, or, with an expansion, of three."""

    def __init__(
        self, inputs: int, filters: int, expansion: int, stride: int, rngs: nnx.Rngs
    ) -> None:
        outputs = filters * expansion
        if expansion == 1:
            self.conv1 = _convolution(inputs, filters, 3, stride, rngs)
            self.bn1 = _normalised(filters, rngs)
            self.conv2 = _convolution(filters, outputs, 3, 1, rngs)
            self.bn2 = _normalised(outputs, rngs)
        else:
            self.conv1 = _convolution(inputs, filters, 1, 1, rngs)
            self.bn1 = _normalised(filters, rngs)
            self.conv2 = _convolution(filters, filters, 3, stride, rngs)
            self.bn2 = _normalised(filters, rngs)
            self.conv3 = _convolution(filters, outputs, 1, 1, rngs)
            self.bn3 = _normalised(outputs, rngs)
        self.is_deep = expansion > 1
        layers = []
        if stride != 1 or inputs != outputs:
            shortcut = _convolution(inputs, outputs, 1, stride, rngs)
            layers = [shortcut, _normalised(outputs, rngs)]
        self.downsample = nnx.List(layers)

    def __call__(self, x: Array) -> Array:
        kept = x
        for layer in self.downsample:
            kept = layer(kept)
        x = self.bn2(self.conv2(jax.nn.relu(self.bn1(self.conv1(x)))))
        if self.is_deep:
            x = self.bn3(self.conv3(jax.nn.relu(x)))
        return jax.nn.relu(x + kept)


class ResNet(nnx.Module):
    """Logits (n, classes) of images."""

    def __init__(self, sizes: Sizes, channels: int, classes: int, rngs: nnx.Rngs) -> None:
        self.conv1 = _convolution(channels, WIDTH, 7, 2, rngs)
        self.bn1 = _normalised(WIDTH, rngs)
        inputs, groups = WIDTH, []
        for group, number in enumerate(sizes.layers):
            filters, blocks = WIDTH * 2**group, []
            for block in range(number):
                stride = 2 if group and not block else 1
                blocks.append(Block(inputs, filters, sizes.expansion, stride, rngs))
                inputs = filters * sizes.expansion
            groups.append(nnx.List(blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        self.dropout = nnx.Dropout(0.0, rngs=rngs)
        self.fc = nnx.Linear(inputs, classes, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = jax.nn.relu(self.bn1(self.conv1(x)))
        x = nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for group in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in group:
                x = block(x)
        return self.fc(self.dropout(x.mean((1, 2))))


class Attention(nnx.Module):
    """Attention of several heads among tokens (n, T, D)."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        xavier = jax.nn.initializers.xavier_uniform()
        self.in_proj = nnx.Linear(width, 3 * width, kernel_init=xavier, rngs=rngs)
        self.out_proj = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        number, tokens, width = x.shape
        shape = number, tokens, 3, self.heads, width // self.heads
        queries, keys, values = jnp.moveaxis(self.in_proj(x).reshape(shape), 2, 0)
        found = jax.nn.dot_product_attention(queries, keys, values)
        return self.out_proj(found.reshape(x.shape))


class EncoderLayer(nnx.Module):
    """Attention and a network of one hidden layer, each added to its normalised input."""

    def __init__(self, sizes: Transformer, rngs: nnx.Rngs) -> None:
        self.ln_1 = nnx.LayerNorm(sizes.width, epsilon=1e-6, rngs=rngs)
        self.self_attention = Attention(sizes.width, sizes.heads, rngs)
        self.ln_2 = nnx.LayerNorm(sizes.width, epsilon=1e-6, rngs=rngs)
        first = nnx.Linear(sizes.width, sizes.hidden, rngs=rngs)
        last = nnx.Linear(sizes.hidden, sizes.width, rngs=rngs)
        self.mlp = nnx.Dict({"0": first, "3": last})

    def __call__(self, x: Array) -> Array:
        x = x + self.self_attention(self.ln_1(x))
        hidden = jax.nn.gelu(self.mlp["0"](self.ln_2(x)), approximate=False)
        return x + self.mlp["3"](hidden)


class Encoder(nnx.Module):
    """Layers over tokens with their places."""

    def __init__(self, sizes: Transformer, tokens: int, rngs: nnx.Rngs) -> None:
        places = 0.02 * jax.random.normal(rngs.params(), (1, tokens, sizes.width))
        self.pos_embedding = nnx.Param(places)
        layers = {f"encoder_layer_{k}": EncoderLayer(sizes, rngs) for k in range(sizes.layers)}
        self.layers = nnx.Dict(layers)
        self.ln = nnx.LayerNorm(sizes.width, epsilon=1e-6, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = x + self.pos_embedding[...]
        for k in range(len(self.layers)):
            x = self.layers[f"encoder_layer_{k}"](x)
        return self.ln(x)


class VisionTransformer(nnx.Module):
    """Logits (n, classes) of images."""

    def __init__(
        self, sizes: Transformer, size: int, channels: int, classes: int, rngs: nnx.Rngs
    ) -> None:
        side = (sizes.patch, sizes.patch)
        self.conv_proj = nnx.Conv(channels, sizes.width, side, side, padding="VALID", rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros((1, 1, sizes.width)))
        self.encoder = Encoder(sizes, 1 + (size // sizes.patch) ** 2, rngs)
        self.dropout = nnx.Dropout(0.0, rngs=rngs)
        self.heads = nnx.Dict({"head": nnx.Linear(sizes.width, classes, rngs=rngs)})

    def __call__(self, x: Array) -> Array:
        patches = self.conv_proj(x).reshape(len(x), -1, self.class_token.shape[-1])
        first = jnp.broadcast_to(self.class_token[...], (len(x), 1, patches.shape[-1]))
        tokens = self.encoder(jnp.concatenate([first, patches], 1))
        return self.heads["head"](self.dropout(tokens[:, 0]))


def load(module: nnx.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Give a network the weights of its twin in torch, by torch's names."""
    state = nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat))
    flat = nnx.to_flat_state(state)
    used = set()
    for path, variable in flat:
        name, transposed = _of_torch(tuple(map(str, path)), variable.ndim)
        used.add(name)
        variable.set_value(jnp.asarray(transposed(np.asarray(weights[name]))))
    unused = {name for name in weights if not name.endswith("num_batches_tracked")} - used
    if unused:
        raise ValueError(f"Expected the weights of this network, found {sorted(unused)[:5]} too.")
    nnx.update(module, nnx.from_flat_state(flat))


def _of_torch(path: tuple[str, ...], axes: int) -> tuple[str, Callable[[Any], Any]]:
    """Name of a parameter in torch, and how its axes become those here."""
    *layers, leaf = path
    named = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
    last = named.get(leaf, leaf)
    name = ".".join([*layers, last])
    if layers and layers[-1] == "in_proj":
        name = ".".join([*layers[:-1], f"in_proj_{last}"])
    if leaf != "kernel":
        return name, lambda value: value
    return name, partial(np.transpose, axes=(2, 3, 1, 0) if axes == 4 else (1, 0))
