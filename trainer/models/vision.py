"""ImageNet models of torchvision, without dropout, as the paper trains them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class _TorchvisionModel:
    """Base of the models: a ``function`` of torchvision.models and fixed ``arguments`` for it."""

    function: ClassVar[str]
    arguments: ClassVar[Mapping[str, float]] = {}

    def build(self, input_shape: Sequence[int], classes: int, **arguments: float) -> nn.Module:
        """Return a model from images [batch, 3, height, width] to logits [batch, classes].

        Raises:
            ValueError: the model does not accept images of this shape.

        """
        from torchvision import models

        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ValueError(
                f"{self.function} needs images of 3 channels, got shape {list(input_shape)}"
            )
        function: Callable[..., nn.Module] = getattr(models, self.function)
        return function(num_classes=classes, **self.arguments, **arguments)


@dataclass(frozen=True)
class ResNet50(_TorchvisionModel):
    """torchvision's ResNet-50 v1.5, with 25,502,912 weights in 54 layers."""

    name: ClassVar[str] = "resnet50"
    function: ClassVar[str] = "resnet50"


@dataclass(frozen=True)
class MobileNetV3Large(_TorchvisionModel):
    """torchvision's MobileNet-V3 Large, with 5,451,272 weights in 64 layers for 1,000 classes."""

    name: ClassVar[str] = "mobilenet-v3-large"
    function: ClassVar[str] = "mobilenet_v3_large"
    arguments: ClassVar[Mapping[str, float]] = {"dropout": 0.0}


@dataclass(frozen=True)
class MobileNetV3Small(MobileNetV3Large):
    """torchvision's MobileNet-V3 Small."""

    name: ClassVar[str] = "mobilenet-v3-small"
    function: ClassVar[str] = "mobilenet_v3_small"


@dataclass(frozen=True)
class ViTB16(_TorchvisionModel):
    """torchvision's ViT-B/16, for square images whose side is a multiple of 16."""

    name: ClassVar[str] = "vit-b-16"
    function: ClassVar[str] = "vit_b_16"

    def build(self, input_shape: Sequence[int], classes: int, **arguments: float) -> nn.Module:
        """Return a model from images [batch, 3, size, size] to logits [batch, classes].

        Raises:
            ValueError: the model does not accept images of this shape.

        """
        size = input_shape[-1]
        if tuple(input_shape[1:]) != (size, size) or size % 16:
            raise ValueError(
                "ViT-B/16 needs square images whose side is a multiple of 16, got shape "
                f"{list(input_shape)}"
            )
        return super().build(input_shape, classes, image_size=size, **arguments)
