"""Models of recipes."""

from .cifar_resnet import ResNet18
from .cnn import CNN
from .mlp import MLP
from .vision import MobileNetV3Large, MobileNetV3Small, ResNet50, ViTB16
from .wide_resnet import WideResNet

Model = MLP | CNN | ResNet18 | WideResNet | ResNet50 | MobileNetV3Large | MobileNetV3Small | ViTB16

MODELS: dict[str, type[Model]] = {
    model.name: model
    for model in (
        MLP,
        CNN,
        ResNet18,
        WideResNet,
        ResNet50,
        MobileNetV3Large,
        MobileNetV3Small,
        ViTB16,
    )
}

__all__ = ["CNN", "MLP", "MODELS", "Model", "ResNet18", "WideResNet"]
