"""Networks for images as sizes alone: residual networks and vision transformers.

They are those of torchvision, whose names of parameters they have, so that its weights fit. K. He,
X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition" (2016); A. Dosovitskiy
and others, "An image is worth 16x16 words" (2021). The small transformer is that of H. Touvron and
others, "Training data-efficient image transformers" (2021), with patches of 16 pixels as there, and
of 32.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResNet:
    """Four groups of residual blocks, the first convolution of a block in place of a plain one.

    Attributes
    ----------
    layers : tuple of int
        Blocks of each group.
    expansion : int
        1 for blocks of two convolutions, 4 for those of three, whose last widens by it.
    """

    layers: tuple[int, ...]
    expansion: int


@dataclass(frozen=True)
class Transformer:
    """Patches of an image through layers of attention.

    Attributes
    ----------
    layers, heads, width, hidden : int
        Layers, heads of attention, numbers of a token, and units of the network in a layer.
    patch : int
        Pixels of a patch's side.
    """

    layers: int
    heads: int
    width: int
    hidden: int
    patch: int = 32


ARCHITECTURES: dict[str, ResNet | Transformer] = {
    "resnet18": ResNet((2, 2, 2, 2), 1),
    "resnet101": ResNet((3, 4, 23, 3), 4),
    "vit_s_16": Transformer(12, 6, 384, 1536, 16),
    "vit_s_32": Transformer(12, 6, 384, 1536),
    "vit_b_32": Transformer(12, 12, 768, 3072),
    "vit_l_32": Transformer(24, 16, 1024, 4096),
}
#: Pixels of a side, channels and classes that published sizes are of.
SIZE, CHANNELS, CLASSES = 224, 3, 1000
#: Filters of the first group of blocks.
WIDTH = 64
