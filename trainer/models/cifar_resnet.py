"""ResNet-18 for images of 32×32: a 3×3 first convolution of stride 1, and no pooling after it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                    norm=nn.BatchNorm2d(outputs),
                )
            )

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 (arXiv 1512.03385) as used for CIFAR-10, with 11,164,352 weights in 21 layers.

    Attributes:
        width: channels of the first stage; each further stage doubles them.

    Raises:
        ValueError: ``width`` is less than 1.

    """

    name: ClassVar[str] = "resnet18"
    width: int = 64

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return a model from images [batch, *input_shape] to logits [batch, classes]."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=nn.Conv2d(input_shape[0], self.width, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(self.width),
            relu=nn.ReLU(),
        )
        inputs = self.width
        for stage in range(4):
            outputs = self.width * 2**stage
            for block in range(2):
                stride = 2 if stage and not block else 1
                layers[f"stage{stage + 1}_block{block + 1}"] = _Block(inputs, outputs, stride)
                inputs = outputs
        layers["average"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(inputs, classes)
        return nn.Sequential(layers)
