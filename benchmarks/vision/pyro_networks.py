"""The networks in torch, with torchvision's names of parameters."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from benchmarks.vision.architectures import ARCHITECTURES, WIDTH, Transformer
from benchmarks.vision.architectures import ResNet as Sizes


def network(name: str, size: int, channels: int, classes: int) -> nn.Module:
    """An architecture for images of ``size`` pixels a side, (n, channels, size, size).

    Its ``dropout``, before the last layer, drops nothing unless told to.
    """
    sizes = ARCHITECTURES[name]
    if isinstance(sizes, Transformer):
        return VisionTransformer(sizes, size, channels, classes)
    return ResNet(sizes, channels, classes)


class Block(nn.Module):
    """A residual block of two convolutions, or, with an expansion, of three."""

    def __init__(self, inputs: int, filters: int, expansion: int, stride: int) -> None:
        super().__init__()
        outputs = filters * expansion

        def convolution(rows: int, columns: int, kernel: int, stride: int) -> nn.Conv2d:
            return nn.Conv2d(rows, columns, kernel, stride, kernel // 2, bias=False)

        if expansion == 1:
            self.conv1 = convolution(inputs, filters, 3, stride)
            self.bn1 = nn.BatchNorm2d(filters)
            self.conv2 = convolution(filters, outputs, 3, 1)
            self.bn2 = nn.BatchNorm2d(outputs)
        else:
            self.conv1 = convolution(inputs, filters, 1, 1)
            self.bn1 = nn.BatchNorm2d(filters)
            self.conv2 = convolution(filters, filters, 3, stride)
            self.bn2 = nn.BatchNorm2d(filters)
            self.conv3 = convolution(filters, outputs, 1, 1)
            self.bn3 = nn.BatchNorm2d(outputs)
        self.is_deep = expansion > 1
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            shortcut = convolution(inputs, outputs, 1, stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.is_deep:
            x = self.bn3(self.conv3(relu(x)))
        return relu(x + kept)


class ResNet(nn.Module):
    """Logits (n, classes) of images."""

    def __init__(self, sizes: Sizes, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTH, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs, groups = WIDTH, []
        for group, number in enumerate(sizes.layers):
            filters, blocks = WIDTH * 2**group, []
            for block in range(number):
                stride = 2 if group and not block else 1
                blocks.append(Block(inputs, filters, sizes.expansion, stride))
                inputs = filters * sizes.expansion
            groups.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(inputs, classes)
        for each in self.modules():
            if isinstance(each, nn.Conv2d):
                nn.init.kaiming_normal_(each.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.as_tensor(self.fc(self.dropout(x.mean((2, 3)))))


class Attention(nn.Module):
    """Attention of several heads among tokens (n, T, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor) -> Tensor:
        number, tokens, width = x.shape
        every = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        shape = number, tokens, 3, self.heads, width // self.heads
        queries, keys, values = every.reshape(shape).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(queries, keys, values)
        return torch.as_tensor(self.out_proj(found.transpose(1, 2).reshape(x.shape)))


class EncoderLayer(nn.Module):
    """Attention and a network of one hidden layer, each added to its normalised input."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(sizes.width, eps=1e-6)
        self.self_attention = Attention(sizes.width, sizes.heads)
        self.ln_2 = nn.LayerNorm(sizes.width, eps=1e-6)
        first, last = nn.Linear(sizes.width, sizes.hidden), nn.Linear(sizes.hidden, sizes.width)
        # In torchvision's numbers, dropout is the third.
        named = [("0", first), ("1", nn.GELU()), ("3", last)]
        self.mlp = nn.Sequential(OrderedDict(named))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        return torch.as_tensor(x + self.mlp(self.ln_2(x)))


class Encoder(nn.Module):
    """Layers over tokens with their places."""

    def __init__(self, sizes: Transformer, tokens: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, tokens, sizes.width))
        named = [(f"encoder_layer_{k}", EncoderLayer(sizes)) for k in range(sizes.layers)]
        self.layers = nn.Sequential(OrderedDict(named))
        self.ln = nn.LayerNorm(sizes.width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.ln(self.layers(x + self.pos_embedding)))


class VisionTransformer(nn.Module):
    """Logits (n, classes) of images."""

    def __init__(self, sizes: Transformer, size: int, channels: int, classes: int) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(channels, sizes.width, sizes.patch, sizes.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.encoder = Encoder(sizes, 1 + (size // sizes.patch) ** 2)
        self.dropout = nn.Dropout(0.0)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(sizes.width, classes)))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1)
        return torch.as_tensor(self.heads(self.dropout(self.encoder(tokens)[:, 0])))
