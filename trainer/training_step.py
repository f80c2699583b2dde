"""One optimizer step: forward and backward in parts, precision, clipping, topology, average."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .data import Augmentation, mix_batch
from .processes import Processes
from .recipe import TrainingConfig
from .sparsifier import Sparsifier
from .topology import TopologyUpdate

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class DivergedError(Exception):
    """The loss is not finite any more."""


@dataclass(frozen=True)
class StepResult:
    """Mean loss, right answers (before mixing), samples, learning rate, change of topology.

    Of the whole batch, whichever process has which part of it.
    """

    loss: float
    correct: int
    samples: int
    learning_rate: float
    update: TopologyUpdate | None


class TrainingStep:
    """Everything that a step needs; ``__call__`` makes one.

    ``classes``: of the data, for mixed labels. ``model`` is trained; with ``compile`` a compiled
    view of it runs. ``ema`` is the average of its weights, or None. ``processes`` share each
    batch, by DistributedDataParallel. ``sparsifier``: made with the step's ``scaler``, and to be
    set before the first step.
    """

    sparsifier: Sparsifier

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        config: TrainingConfig,
        augmentation: Augmentation,
        classes: int,
        processes: Processes,
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.config, self.augmentation, self.classes = config, augmentation, classes
        self.processes = processes
        self.device = next(model.parameters()).device
        self.scaler = None
        if config.precision == "float16":
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.ema = None
        if config.ema_decay:
            # torch has no annotations for it.
            average = get_ema_multi_avg_fn(config.ema_decay)  # type: ignore[no-untyped-call]
            self.ema = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
        self._parallel = None if processes.count == 1 else DistributedDataParallel(model)
        self._run: Callable[[Tensor], Tensor] = model if self._parallel is None else self._parallel
        if config.compile:
            self._run = torch.compile(self._run)

    @property
    def evaluated(self) -> nn.Module:
        """The model that counts: the average where there is one."""
        return self.model if self.ema is None else self.ema.module

    def __call__(
        self, parts: Sequence[tuple[Tensor, Tensor]], samples: int, mix_seed: int
    ) -> StepResult:
        """Train on one batch of ``samples``, of which this process gets its share, in parts.

        Raises DivergedError for a loss that is not finite. ValueError comes from the sparsifier:
        weights or gradients are not finite.
        """
        loss, correct = 0.0, 0.0
        for number, (inputs, labels) in enumerate(parts):
            with self._averaged_with_others(last=number == len(parts) - 1):
                found = self._backward(inputs, labels, samples, mix_seed + number)
            loss, correct = loss + found[0], correct + found[1]
        loss, correct = self.processes.sums((loss, correct), self.device)
        learning_rate = float(self.scheduler.get_last_lr()[0])
        steps = self.sparsifier.step_count
        self._optimize()
        update = self.sparsifier.step()
        if self.sparsifier.step_count > steps:  # else the scaler found an overflow
            self.scheduler.step()
            if self.ema is not None:
                self.ema.update_parameters(self.model)
                if update is not None:
                    self.sparsifier.mask_(self.ema)
        self.optimizer.zero_grad()
        return StepResult(loss, int(correct), samples, learning_rate, update)

    def _averaged_with_others(self, *, last: bool) -> AbstractContextManager[None]:
        """Average gradients over processes once a step, in the backward pass of the last part."""
        if self._parallel is None or last:
            return nullcontext()
        return self._parallel.no_sync()

    def _backward(
        self, inputs: Tensor, labels: Tensor, samples: int, mix_seed: int
    ) -> tuple[float, int]:
        mixed, targets = mix_batch(inputs, labels, self.classes, self.augmentation, mix_seed)
        dtype = _DTYPES.get(self.config.precision)
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            logits = self._run(mixed)
            loss = cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"the loss is {value}")
        share = len(labels) / samples
        weight = share * self.processes.count  # their gradients are averaged, not summed
        loss = loss if weight == 1 else loss * weight
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]  # torch has no annotations for it
        return value * share, int((logits.argmax(1) == labels).sum())

    def _optimize(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
