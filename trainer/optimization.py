"""Optimizers and learning-rate schedules of recipes."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


@dataclass(frozen=True)
class _OptimizerConfig:
    """Base of the optimizers; building one checks the values by torch's own rules.

    Attributes:
        lr: learning rate.
        decay_norms: decay biases and parameters of norms as well.

    """

    torch_class: ClassVar[Callable[..., Optimizer]]
    lr: float
    decay_norms: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not math.isfinite(self.lr):
            raise ValueError(f"lr must be finite, got {self.lr}")
        betas = getattr(self, "betas", (0, 0))
        if len(betas) != 2:
            raise ValueError(f"betas must be two numbers, got {list(betas)}")
        self.build([nn.Parameter(torch.zeros(1))])

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return an optimizer of ``parameters``.

        Without ``decay_norms``, those of one dimension (biases, scales of norms) have no decay.
        """
        options, own = asdict(self), list(parameters)
        if options.pop("decay_norms"):
            return type(self).torch_class(own, **options)
        decayed, others = [p for p in own if p.dim() > 1], [p for p in own if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed}] if decayed else []
        if others:
            groups.append({"params": others, "weight_decay": 0.0})
        return type(self).torch_class(groups, **options)


@dataclass(frozen=True)
class SGD(_OptimizerConfig):
    """torch.optim.SGD."""

    name: ClassVar[str] = "sgd"
    torch_class: ClassVar[Callable[..., Optimizer]] = torch.optim.SGD
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adam(_OptimizerConfig):
    """torch.optim.Adam."""

    name: ClassVar[str] = "adam"
    torch_class: ClassVar[Callable[..., Optimizer]] = torch.optim.Adam
    lr: float = 0.001
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW(_OptimizerConfig):
    """torch.optim.AdamW."""

    name: ClassVar[str] = "adamw"
    torch_class: ClassVar[Callable[..., Optimizer]] = torch.optim.AdamW
    lr: float = 0.001
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.01


@dataclass(frozen=True)
class RMSprop(_OptimizerConfig):
    """torch.optim.RMSprop."""

    name: ClassVar[str] = "rmsprop"
    torch_class: ClassVar[Callable[..., Optimizer]] = torch.optim.RMSprop
    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class _LRSchedule:
    """Base of the schedules: a linear warm-up, then ``after_warmup``.

    Attributes:
        warmup_epochs: length of the warm-up.
        warmup_start: factor of the learning rate at the first step, in [0, 1].

    Raises:
        ValueError: a value is out of range.

    """

    warmup_epochs: float = 0.0
    warmup_start: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_epochs < 0 or not 0 <= self.warmup_start <= 1:
            raise ValueError("warmup_epochs must be 0 or more and warmup_start in [0, 1]")

    def build(self, optimizer: Optimizer, total_steps: int, epoch_steps: int) -> LRScheduler:
        """Return a scheduler to step after every optimizer step.

        Args:
            optimizer: its learning rates are scheduled.
            total_steps: optimizer steps of the training.
            epoch_steps: optimizer steps of an epoch.

        """
        warmup = self.warmup_epochs * epoch_steps

        def factor(step: int) -> float:
            if step < warmup:
                return self.warmup_start + (1 - self.warmup_start) * step / warmup
            return self.after_warmup(step, warmup, total_steps, epoch_steps)

        return LambdaLR(optimizer, factor)

    def after_warmup(self, step: int, warmup: float, total_steps: int, epoch_steps: int) -> float:
        """Return the factor of the learning rate at ``step`` (from 0), at or after ``warmup``."""
        raise NotImplementedError

    def stretch(self, factor: float) -> Self:
        """Return the same schedule for a training ``factor`` times as long."""
        return replace(self, warmup_epochs=self.warmup_epochs * factor)


@dataclass(frozen=True)
class ConstantLR(_LRSchedule):
    """Keeps the optimizer's learning rate."""

    name: ClassVar[str] = "constant"

    def after_warmup(self, *_: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class CosineLR(_LRSchedule):
    """Half a cosine from the optimizer's learning rate to 0 over all steps after the warm-up."""

    name: ClassVar[str] = "cosine"

    def after_warmup(self, step: int, warmup: float, total_steps: int, epoch_steps: int) -> float:  # noqa: ARG002
        """Return ½ · (1 + cos(π · progress))."""
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, total_steps - warmup)))


@dataclass(frozen=True)
class StepLR(_LRSchedule):
    """Multiplies the learning rate by ``gamma`` at certain epochs.

    Attributes:
        gamma: factor, in (0, 1].
        milestones: the epochs; exclusive with ``every``.
        every: the interval in epochs; exclusive with ``milestones``.

    Raises:
        ValueError: not exactly one of ``milestones`` and ``every`` is given, or a value is out of
            range.

    """

    name: ClassVar[str] = "step"
    gamma: float = 0.1
    milestones: tuple[float, ...] = ()
    every: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.milestones) == bool(self.every):
            raise ValueError("set either milestones or every, in epochs")
        if self.every < 0 or not 0 < self.gamma <= 1:
            raise ValueError("every must be positive and gamma in (0, 1]")

    def after_warmup(self, step: int, warmup: float, total_steps: int, epoch_steps: int) -> float:  # noqa: ARG002
        """Return gamma to the power of the milestones passed."""
        epoch = step / epoch_steps
        if self.every:
            return self.gamma ** int(epoch / self.every)
        return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)

    def stretch(self, factor: float) -> Self:
        """Stretch milestones and interval, too."""
        return replace(
            super().stretch(factor),
            milestones=tuple(milestone * factor for milestone in self.milestones),
            every=self.every * factor,
        )


OPTIMIZERS: dict[str, type[SGD | Adam | AdamW | RMSprop]] = {
    config.name: config for config in (SGD, Adam, AdamW, RMSprop)
}
LR_SCHEDULES: dict[str, type[ConstantLR | CosineLR | StepLR]] = {
    config.name: config for config in (ConstantLR, CosineLR, StepLR)
}
