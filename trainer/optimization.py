"""Optimizers and learning-rate schedules that recipes can name."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD."""

    name: ClassVar[str] = "sgd"
    lr: float
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.SGD(parameters, **asdict(self))


@dataclass(frozen=True)
class Adam:
    """torch.optim.Adam."""

    name: ClassVar[str] = "adam"
    lr: float = 0.001
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.Adam(parameters, **asdict(self))


@dataclass(frozen=True)
class AdamW:
    """torch.optim.AdamW."""

    name: ClassVar[str] = "adamw"
    lr: float = 0.001
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.01

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.AdamW(parameters, **asdict(self))


@dataclass(frozen=True)
class RMSprop:
    """torch.optim.RMSprop."""

    name: ClassVar[str] = "rmsprop"
    lr: float = 0.01
    alpha: float = 0.99
    momentum: float = 0.0
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.RMSprop(parameters, **asdict(self))


@dataclass(frozen=True)
class ConstantLR:
    """The optimizer's learning rate throughout."""

    name: ClassVar[str] = "constant"

    def build(self, optimizer: Optimizer, total_steps: int) -> LRScheduler:  # noqa: ARG002
        """Scheduler stepped after every optimizer step."""
        return LambdaLR(optimizer, _one)


@dataclass(frozen=True)
class CosineLR:
    """Half a cosine from the optimizer's learning rate to 0 over all steps."""

    name: ClassVar[str] = "cosine"

    def build(self, optimizer: Optimizer, total_steps: int) -> LRScheduler:
        """Scheduler stepped after every optimizer step."""
        return CosineAnnealingLR(optimizer, T_max=total_steps)


def _one(_: int) -> float:
    return 1.0


OPTIMIZERS = {config.name: config for config in (SGD, Adam, AdamW, RMSprop)}
LR_SCHEDULES = {config.name: config for config in (ConstantLR, CosineLR)}
