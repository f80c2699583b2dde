"""A training run in progress: model, optimizer, sparsifier, data and position."""

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from .backends import with_channels_last
from .checkpoint import Environment, Progress, Stateful, load_checkpoint, save_checkpoint
from .config_table import ConfigError
from .data import Dataset, DataSplit, describe, held_out
from .distillation import load_teacher
from .evaluation import Evaluation, evaluate
from .fake_quantization import fake_quantize_
from .initial_weights import fitting_masks, load_initial_weights
from .initialization import InitializationOptions
from .metrics import MetricsWriter, NullMetricsWriter
from .processes import Processes
from .progress import TrainingDisplay
from .recipe import TrainConfig
from .run_folder import STATE, RunFolderError, build_model, write_best_weights
from .seeds import derived_generator
from .sparsifier import Sparsifier
from .training_step import DivergenceError, TrainingStep


class TrainingError(Exception):
    """Training cannot continue; the message says why and what to change."""


class TrainingRun:
    """State of a run while it trains.

    With several ``processes``, each takes its share of every batch; all hold the same model.

    Args:
        config: configuration.
        folder: run folder.
        data: the data set.
        device: device of this process.
        processes: the data-parallel processes.
        resumed: a checkpoint will be restored, so initial weights are not read.

    Raises:
        ConfigError: model, sparsity, batch size, initial weights or teacher do not work out.
        RunFolderError: processes have different data.

    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        data: Dataset,
        device: torch.device,
        processes: Processes,
        *,
        resumed: bool = False,
    ) -> None:
        self.config, self.folder, self.processes = config, folder, processes
        training = config.training
        train, self.validation_split = data.train, None
        if training.validation:
            train, validation = held_out(train, training.validation, training.seed)
            self.validation_split = validation.to(device)
        self.train_split, self.test_split = train.to(device), data.test.to(device)
        self.batches = batches_of_epoch(config, len(train), processes.count)
        self.total_steps = self.batches * training.epochs
        torch.manual_seed(training.seed)
        self.model = build_model(config).to(device)
        shape, classes = describe(config.data)
        if training.channels_last:
            self.model = with_channels_last(self.model, shape)
        masks: dict[str, Tensor] = {}
        if training.initial_weights and not resumed:
            masks = load_initial_weights(self.model, training.initial_weights)
        if training.quantization_aware:
            _round_to_8_bits(self.model)
        self.optimizer = config.optimizer.build(self.model.parameters())
        self.scheduler = config.lr_schedule.build(self.optimizer, self.total_steps, self.batches)
        self.step = TrainingStep(
            self.model,
            self.optimizer,
            self.scheduler,
            training,
            config.augmentation,
            classes,
            processes,
            load_teacher(config, device),
        )
        try:
            self.sparsifier = Sparsifier(
                self.model,
                self.optimizer,
                method=config.method,
                total_steps=self.total_steps,
                seed=training.seed,
                grad_scaler=self.step.scaler,
                layers=config.sparsifier.layers,
                schedule=config.sparsifier.schedule,
                initialization=InitializationOptions(
                    mask=fitting_masks(masks, config, self.model),
                    keep_weights=bool(training.initial_weights),
                    weight_std=config.sparsifier.weight_std,
                ),
            )
        except ValueError as error:
            raise ConfigError(f"in [sparsifier]: {error}") from error
        self.step.sparsifier = self.sparsifier
        self.progress = Progress()
        self.environment = Environment(
            data=data.fingerprint(),
            threads=torch.get_num_threads(),
            torch_version=str(torch.__version__),
            device=device.type,
            processes=processes.count,
        )
        if processes.broadcast_object(self.environment.data) != self.environment.data:
            raise RunFolderError(
                f"process {processes.rank} has different data from rank 0; give all processes the "
                "same data folder"
            )

    def restore(self) -> int:
        """Load the checkpoint and return the length of metrics.jsonl in bytes at that time.

        Raises:
            RunFolderError: the checkpoint is damaged, or belongs to other data or another
                configuration.

        """
        try:
            self.progress, before, metrics_bytes = load_checkpoint(
                self.folder / STATE, self._parts()
            )
        except ValueError as error:
            raise RunFolderError(f"run {self.folder} cannot be resumed: {error}") from error
        if before.data != self.environment.data:
            raise RunFolderError(
                f"run {self.folder} was started on different data; resume it with the same data "
                "folder"
            )
        if before != self.environment and self.processes.is_first:
            warnings.warn(
                f"Resuming in a different environment (was {before}, is {self.environment}): the "
                "result may differ from that of an uninterrupted run in the last bits.",
                stacklevel=3,
            )
        return metrics_bytes

    def train(self, metrics: MetricsWriter | NullMetricsWriter, display: TrainingDisplay) -> None:
        """Train from the current position to the end.

        Raises:
            TrainingError: training diverged, or processes hold different weights.

        """
        every = self.config.training.checkpoint_every
        display.show(self.progress.step)
        while self.progress.epoch < self.config.training.epochs:
            started = time.perf_counter()
            for parts, samples in self._epoch():
                self._step(parts, samples, metrics)
                display.show(self.progress.step, self.progress.loss_sum / self.progress.seen)
                if every and self.progress.step % every == 0:
                    now = time.perf_counter()
                    self.progress.seconds += now - started
                    started = now
                    self._checkpoint(metrics)
            self.progress.seconds += time.perf_counter() - started
            self._finish_epoch(metrics, display)
            self._checkpoint(metrics)

    def _epoch(self) -> Iterator[tuple[list[tuple[Tensor, Tensor]], int]]:
        """Yield this process's share of each remaining batch, in parts, with its size."""
        training, epoch, here = self.config.training, self.progress.epoch, self.processes
        order = self.train_split.order(training.seed, epoch)
        batches = torch.split(order, training.batch_size)[self.progress.batch : self.batches]
        shares = [batch.tensor_split(here.count)[here.rank] for batch in batches]
        parts = [
            torch.split(share, math.ceil(len(share) / training.accumulate)) for share in shares
        ]
        seeds = [
            (
                training.seed,
                epoch,
                self.progress.batch + number,
                here.rank * training.accumulate + part,
            )
            for number, pieces in enumerate(parts)
            for part in range(len(pieces))
        ]
        flat = [piece for pieces in parts for piece in pieces]
        loaded = self.train_split.batches(flat, seeds)
        for pieces, batch in zip(parts, batches, strict=True):
            yield [next(loaded) for _ in pieces], len(batch)

    def _step(
        self,
        parts: list[tuple[Tensor, Tensor]],
        samples: int,
        metrics: MetricsWriter | NullMetricsWriter,
    ) -> None:
        at, seed, rank = self.progress, self.config.training.seed, self.processes.rank
        # Dropout uses the global generators; since each step seeds them, checkpoints can omit them.
        torch.manual_seed(_derived_seed(seed, "step", at.step, rank))
        mixing = _derived_seed(seed, "mixing", at.step) + rank * self.config.training.accumulate
        try:
            result = self.step(parts, samples, mixing)
        except (DivergenceError, ValueError) as error:
            raise self._diverged(str(error)) from error
        at.batch, at.step = at.batch + 1, at.step + 1
        at.loss_sum += result.loss * result.samples
        at.correct, at.seen = at.correct + result.correct, at.seen + result.samples
        if at.step % self.config.training.log_every == 0:
            metrics.write(
                "step",
                step=at.step,
                epoch=at.epoch + 1,
                loss=result.loss,
                accuracy=result.correct / result.samples,
                lr=result.learning_rate,
            )
        if result.update is not None:
            metrics.write("update", **asdict(result.update), itop_rate=self.sparsifier.itop_rate)

    def _diverged(self, reason: str) -> TrainingError:
        return TrainingError(
            f"training diverged near step {self.progress.step + 1}: {reason}. Lower optimizer.lr "
            f"({self.config.optimizer.lr}); {self.folder} still has its last checkpoint"
        )

    def _finish_epoch(
        self, metrics: MetricsWriter | NullMetricsWriter, display: TrainingDisplay
    ) -> None:
        at, summary = self.progress, self.sparsifier.summary()
        figures = {"train_loss": at.loss_sum / at.seen, "train_accuracy": at.correct / at.seen}
        figures |= self._evaluate(self.test_split).figures("test")
        best = at.best
        if self.validation_split is not None:
            found = self._evaluate(self.validation_split)
            figures |= found.figures("validation")
            best = max(best, found.accuracy)
        if best > at.best and self.config.training.keep == "best" and self.processes.is_first:
            write_best_weights(self.folder, self.step.eval_model, self.sparsifier.masks)
        display.finish_epoch(at.step, figures)
        metrics.write(
            "epoch",
            epoch=at.epoch + 1,
            step=at.step,
            **figures,
            density=summary.density,
            itop_rate=self.sparsifier.itop_rate,
            seconds=round(at.seconds, 3),
            layers=[asdict(row) for row in summary],
        )
        self.progress = Progress(epoch=at.epoch + 1, step=at.step, seconds=at.seconds, best=best)

    def _evaluate(self, split: DataSplit) -> Evaluation:
        found = evaluate(self.step.eval_model, split, self.processes, self.config.training)
        if not math.isfinite(found.loss):
            raise self._diverged(f"the loss of the evaluation is {found.loss}")
        return found

    def _checkpoint(self, metrics: MetricsWriter | NullMetricsWriter) -> None:
        self.sparsifier.synchronize()
        if not self.processes.all_hold_equal([*self.model.parameters(), *self._masks()]):
            raise TrainingError(
                f"at step {self.progress.step} the processes hold different weights or masks. This "
                "should never happen; check that all run the same torch version on equal machines"
            )
        length = metrics.sync()
        if self.processes.is_first:
            save_checkpoint(
                self.folder / STATE, self._parts(), self.progress, self.environment, length
            )

    def _masks(self) -> list[Tensor]:
        return list(self.sparsifier.masks.values())

    def _parts(self) -> dict[str, Stateful]:
        parts: dict[str, Stateful] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "sparsifier": self.sparsifier,
        }
        if self.step.scaler is not None:
            parts["scaler"] = self.step.scaler
        if self.step.ema is not None:
            parts["ema"] = self.step.ema
        return parts


def _round_to_8_bits(model: nn.Module) -> None:
    left = fake_quantize_(model).left
    if left:
        warnings.warn(
            f"training.quantization_aware leaves {', '.join(left)} in float: the attention module "
            "reads them directly",
            RuntimeWarning,
            stacklevel=4,
        )


def batches_of_epoch(config: TrainConfig, samples: int, processes: int) -> int:
    """Return the number of batches in an epoch.

    Args:
        config: configuration.
        samples: size of the training split.
        processes: number of data-parallel processes.

    Raises:
        ConfigError: there is no batch, or one is too small for the processes.

    """
    size = config.training.batch_size
    batches = (math.floor if config.training.drop_last else math.ceil)(samples / size)
    if batches == 0:
        raise ConfigError("drop_last leaves no batch, since batch_size exceeds the data set")
    smallest = min(size, samples - (batches - 1) * size)
    if smallest < processes:
        raise ConfigError(
            f"a batch of {smallest} samples cannot be split over {processes} processes; change "
            "training.batch_size, or set training.drop_last = true if it is the last of an epoch"
        )
    return batches


def _derived_seed(*parts: int | str) -> int:
    return int(torch.randint(2**31, (), generator=derived_generator(*parts)))
