"""Optimizers and learning-rate schedules that recipes can name."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


class _Checked:
    """Base of the optimizers: torch itself says at once whether it would take these values."""

    lr: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.lr):
            raise ValueError(f"lr must be finite, got {self.lr}")
        betas = getattr(self, "betas", (0, 0))
        if len(betas) != 2:
            raise ValueError(f"betas must be two numbers, got {list(betas)}")
        self.build([nn.Parameter(torch.zeros(1))])

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(_Checked):
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
class Adam(_Checked):
    """torch.optim.Adam."""

    name: ClassVar[str] = "adam"
    lr: float = 0.001
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.Adam(parameters, **asdict(self))


@dataclass(frozen=True)
class AdamW(_Checked):
    """torch.optim.AdamW."""

    name: ClassVar[str] = "adamw"
    lr: float = 0.001
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.01

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.AdamW(parameters, **asdict(self))


@dataclass(frozen=True)
class RMSprop(_Checked):
    """torch.optim.RMSprop."""

    name: ClassVar[str] = "rmsprop"
    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Optimizer over ``parameters``."""
        return torch.optim.RMSprop(parameters, **asdict(self))


@dataclass(frozen=True)
class _Schedule:
    """Base of the schedules: a linear warm-up of ``warmup_epochs``, then ``after_warmup``.

    ``warmup_start``: share of the learning rate at the first step.
    """

    warmup_epochs: float = 0.0
    warmup_start: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_epochs < 0 or not 0 <= self.warmup_start <= 1:
            raise ValueError("warmup_epochs must be 0 or more and warmup_start in [0, 1]")

    def build(self, optimizer: Optimizer, total_steps: int, epoch_steps: int) -> LRScheduler:
        """Scheduler stepped after every optimizer step; ``epoch_steps``: steps of an epoch."""
        warmup = self.warmup_epochs * epoch_steps

        def factor(step: int) -> float:
            if step < warmup:
                return self.warmup_start + (1 - self.warmup_start) * step / warmup
            return self.after_warmup(step, warmup, total_steps, epoch_steps)

        return LambdaLR(optimizer, factor)

    def after_warmup(self, step: int, warmup: float, total_steps: int, epoch_steps: int) -> float:
        """Share of the learning rate at ``step`` (from 0), which is not before ``warmup``."""
        raise NotImplementedError

    def stretched(self, factor: float) -> Self:
        """Return the same schedule for a training ``factor`` times as long."""
        return replace(self, warmup_epochs=self.warmup_epochs * factor)


@dataclass(frozen=True)
class ConstantLR(_Schedule):
    """The optimizer's learning rate throughout."""

    name: ClassVar[str] = "constant"

    def after_warmup(self, *_: float) -> float:
        """All of it."""
        return 1.0


@dataclass(frozen=True)
class CosineLR(_Schedule):
    """Half a cosine from the optimizer's learning rate to 0 over all steps after the warm-up."""

    name: ClassVar[str] = "cosine"

    def after_warmup(self, step: int, warmup: float, total_steps: int, epoch_steps: int) -> float:  # noqa: ARG002
        """Half a cosine."""
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, total_steps - warmup)))


@dataclass(frozen=True)
class StepLR(_Schedule):
    """The learning rate times ``gamma`` at each epoch of ``milestones``, or ``every`` so many."""

    name: ClassVar[str] = "step"
    gamma: float = 0.1
    milestones: tuple[float, ...] = ()
    every: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.milestones) == bool(self.every):
            raise ValueError("give either milestones or every, in epochs")
        if self.every < 0 or not 0 < self.gamma <= 1:
            raise ValueError("every must be positive and gamma in (0, 1]")

    def after_warmup(self, step: int, warmup: float, total_steps: int, epoch_steps: int) -> float:  # noqa: ARG002
        """Gamma to the number of epochs that were reached."""
        epoch = step / epoch_steps
        if self.every:
            return self.gamma ** int(epoch / self.every)
        return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)

    def stretched(self, factor: float) -> Self:
        """Stretch milestones and intervals, too."""
        return replace(
            super().stretched(factor),
            milestones=tuple(milestone * factor for milestone in self.milestones),
            every=self.every * factor,
        )


OPTIMIZERS: dict[str, type[SGD | Adam | AdamW | RMSprop]] = {
    config.name: config for config in (SGD, Adam, AdamW, RMSprop)
}
LR_SCHEDULES: dict[str, type[ConstantLR | CosineLR | StepLR]] = {
    config.name: config for config in (ConstantLR, CosineLR, StepLR)
}
