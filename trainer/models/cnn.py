"""A small convolutional network for images such as 28×28."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class CNN:
    """3×3 convolutions with batch norm, ReLU and pooling; global average pooling; a linear head.

    Attributes:
        channels: output channels of the convolutions conv1, conv2, …; there is no max pooling after
            the last one.

    Raises:
        ValueError: there is no convolution, or one without channels.

    """

    name: ClassVar[str] = "cnn"
    channels: tuple[int, ...] = (64, 128, 256)

    def __post_init__(self) -> None:
        if not self.channels or any(width < 1 for width in self.channels):
            raise ValueError(f"channels must list positive numbers, got {list(self.channels)}")

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return a model from images [batch, *input_shape] to logits [batch, classes]."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        width = input_shape[0]
        for index, channels in enumerate(self.channels, start=1):
            layers[f"conv{index}"] = nn.Conv2d(width, channels, 3, padding=1, bias=False)
            layers[f"norm{index}"] = nn.BatchNorm2d(channels)
            layers[f"relu{index}"] = nn.ReLU()
            if index < len(self.channels):
                layers[f"pool{index}"] = nn.MaxPool2d(2)
            width = channels
        layers["average"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(width, classes)
        return nn.Sequential(layers)
