"""Wide ResNets for images of 32×32 (arXiv 1605.07146): norm and ReLU before each convolution."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Pre-activation block; the shortcut is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        active = torch.relu(self.norm1(images))
        hidden = torch.relu(self.norm2(self.conv1(active)))
        change: Tensor = self.conv2(self.dropout(hidden))
        return change + (images if self.shortcut is None else self.shortcut(active))


@dataclass(frozen=True)
class WideResNet:
    """WRN-``depth``-``widen``; the default 22-2 has 1,076,912 weights in 23 layers for 10 classes.

    Attributes:
        depth: 6·blocks + 4 layers, at least 10.
        widen: factor of the channels.
        dropout: probability between the convolutions of a block (SRigL's code uses 0.3, the paper
            does not mention it).

    Raises:
        ValueError: a value is out of range.

    """

    name: ClassVar[str] = "wide-resnet"
    depth: int = 22
    widen: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.depth < 10 or (self.depth - 4) % 6:
            raise ValueError(f"depth must be 6·blocks + 4, at least 10, got {self.depth}")
        if self.widen < 1 or not 0 <= self.dropout < 1:
            raise ValueError("widen must be at least 1 and dropout in [0, 1)")

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return a model from images [batch, *input_shape] to logits [batch, classes]."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)
        )
        inputs = 16
        for stage in range(3):
            outputs = 16 * self.widen * 2**stage
            for block in range((self.depth - 4) // 6):
                stride = 2 if stage and not block else 1
                name = f"stage{stage + 1}_block{block + 1}"
                layers[name] = _Block(inputs, outputs, stride, self.dropout)
                inputs = outputs
        layers["norm"] = nn.BatchNorm2d(inputs)
        layers["relu"] = nn.ReLU()
        layers["average"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(inputs, classes)
        return nn.Sequential(layers)
