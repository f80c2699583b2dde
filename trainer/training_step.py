"""One optimizer step: forward, backward, precision, clipping, topology update, weight average."""

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

from .backends import in_memory_format
from .data import Augmentation, mix_batch
from .distillation import Teacher
from .precision import autocast
from .processes import Processes
from .recipe import TrainingConfig
from .sparsifier import Sparsifier
from .topology import TopologyUpdate


class DivergenceError(Exception):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class StepResult:
    """Result of one step over the whole batch, all processes included.

    Attributes:
        loss: mean loss.
        correct: correctly classified samples, by labels before mixing.
        samples: samples of the batch.
        learning_rate: learning rate of the step.
        update: change of topology, or None.

    """

    loss: float
    correct: int
    samples: int
    learning_rate: float
    update: TopologyUpdate | None


class TrainingStep:
    """Performs optimizer steps.

    ``sparsifier`` must be set before the first step; it is created with the ``scaler`` of this
    object.

    Args:
        model: the model; ``compile`` runs a compiled view of it.
        optimizer: its optimizer.
        scheduler: stepped after each optimizer step.
        config: table [training].
        augmentation: how batches are mixed.
        classes: number of classes, for mixed labels.
        processes: share each batch, by DistributedDataParallel.
        teacher: adds its part to the loss; None: no distillation.

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
        teacher: Teacher | None = None,
    ) -> None:
        self.teacher = teacher
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.config, self.augmentation, self.classes = config, augmentation, classes
        self.processes = processes
        self.device = next(model.parameters()).device
        self.scaler = None
        if config.precision == "float16":
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.ema = None
        if config.ema_decay:
            # torch does not annotate it.
            average = get_ema_multi_avg_fn(config.ema_decay)  # type: ignore[no-untyped-call]
            self.ema = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
        self._parallel = None if processes.count == 1 else DistributedDataParallel(model)
        self._run: Callable[[Tensor], Tensor] = model if self._parallel is None else self._parallel
        if config.compile:
            self._run = torch.compile(self._run)

    @property
    def eval_model(self) -> nn.Module:
        """The model to evaluate and save: the average of the weights, if there is one."""
        return self.model if self.ema is None else self.ema.module

    def __call__(
        self, parts: Sequence[tuple[Tensor, Tensor]], samples: int, mix_seed: int
    ) -> StepResult:
        """Train on one batch.

        Args:
            parts: this process's share of the batch, in parts of inputs and labels.
            samples: samples of the whole batch.
            mix_seed: seed of mixing; the parts use consecutive ones.

        Raises:
            DivergenceError: the loss is not finite.
            ValueError: weights or gradients are not finite at a topology update.

        """
        loss, correct = 0.0, 0.0
        for number, (inputs, labels) in enumerate(parts):
            with self._gradient_sync(last=number == len(parts) - 1):
                found = self._backward(inputs, labels, samples, mix_seed + number)
            loss, correct = loss + found[0], correct + found[1]
        loss, correct = self.processes.sum_values((loss, correct), self.device)
        learning_rate = float(self.scheduler.get_last_lr()[0])
        steps = self.sparsifier.step_count
        self._optimize()
        update = self.sparsifier.step()
        if self.sparsifier.step_count > steps:  # else the scaler skipped the step
            self.scheduler.step()
            if self.ema is not None:
                self.ema.update_parameters(self.model)
                if update is not None:
                    self.sparsifier.mask_(self.ema)
        self.optimizer.zero_grad()
        return StepResult(loss, int(correct), samples, learning_rate, update)

    def _gradient_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Synchronize gradients between processes in the backward pass of the last part only."""
        if self._parallel is None or last:
            return nullcontext()
        return self._parallel.no_sync()

    def _backward(
        self, inputs: Tensor, labels: Tensor, samples: int, mix_seed: int
    ) -> tuple[float, int]:
        mixed, targets = mix_batch(inputs, labels, self.classes, self.augmentation, mix_seed)
        mixed = in_memory_format(mixed, self.config)
        with autocast(self.device, self.config.precision):
            logits = self._run(mixed)
            loss = cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)
            if self.teacher is not None:
                loss = self.teacher.loss(mixed, logits, loss)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(f"the loss is {value}")
        share = len(labels) / samples
        weight = share * self.processes.count  # DistributedDataParallel averages gradients
        loss = loss if weight == 1 else loss * weight
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
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
