"""Multi-layer perceptrons."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class MLP:
    """Multi-layer perceptron: hidden layers fc1, fc2, … with ReLU, and a linear head.

    The default widths contain the benchmark layer of the paper, 3072 → 768.

    Attributes:
        hidden: widths of the hidden layers.

    Raises:
        ValueError: there is no hidden layer, or one without neurons.

    """

    name: ClassVar[str] = "mlp"
    hidden: tuple[int, ...] = (3072, 768)

    def __post_init__(self) -> None:
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden must list positive layer widths, got {list(self.hidden)}")

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return a model from inputs [batch, *input_shape] to logits [batch, classes]."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = prod(input_shape)
        for index, next_width in enumerate(self.hidden, start=1):
            layers[f"fc{index}"] = nn.Linear(width, next_width)
            layers[f"relu{index}"] = nn.ReLU()
            width = next_width
        layers["head"] = nn.Linear(width, classes)
        return nn.Sequential(layers)
