"""ImageNet models of torchvision, without dropout, as the paper trains them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class ResNet50:
    """torchvision's ResNet-50 v1.5; 25,502,912 weights of 54 layers."""

    name: ClassVar[str] = "resnet50"

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Model from images [batch, 3, …] to logits [batch, classes]."""
        return _torchvision("resnet50", input_shape)(num_classes=classes)


@dataclass(frozen=True)
class MobileNetV3Large:
    """torchvision's MobileNet-V3 Large; 5,451,272 weights of 64 layers for 1,000 classes."""

    name: ClassVar[str] = "mobilenet-v3-large"

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Model from images [batch, 3, …] to logits [batch, classes]."""
        return _torchvision("mobilenet_v3_large", input_shape)(num_classes=classes, dropout=0.0)


@dataclass(frozen=True)
class MobileNetV3Small:
    """torchvision's MobileNet-V3 Small."""

    name: ClassVar[str] = "mobilenet-v3-small"

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Model from images [batch, 3, …] to logits [batch, classes]."""
        return _torchvision("mobilenet_v3_small", input_shape)(num_classes=classes, dropout=0.0)


@dataclass(frozen=True)
class ViTB16:
    """torchvision's ViT-B/16; its images are square, of a size that 16 divides."""

    name: ClassVar[str] = "vit-b-16"

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Model from images [batch, 3, size, size] to logits [batch, classes]."""
        build = _torchvision("vit_b_16", input_shape)
        if input_shape[1] != input_shape[2] or input_shape[1] % 16:
            raise ValueError(
                f"ViT-B/16 needs square images of a size that 16 divides, not {input_shape}"
            )
        return build(num_classes=classes, image_size=input_shape[1])


def _torchvision(name: str, input_shape: Sequence[int]) -> Callable[..., nn.Module]:
    from torchvision import models

    if len(input_shape) != 3 or input_shape[0] != 3:
        raise ValueError(f"{name} needs images of 3 channels, the data have {list(input_shape)}")
    build: Callable[..., nn.Module] = getattr(models, name)
    return build
