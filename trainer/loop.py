"""Training by a recipe into a run folder."""

import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .checkpoint import Circumstances, Progress, load_checkpoint, save_checkpoint
from .config_table import ConfigError
from .data import Dataset, DataSplit, describe, epoch_order, load_dataset
from .metrics import MetricsWriter, read_metrics
from .progress import TrainingDisplay
from .recipe import TrainConfig, load_recipe, sparsifier_options
from .run_folder import (
    METRICS,
    STATE,
    RunFolderError,
    build_model,
    is_finished,
    open_run,
    read_config,
    write_config,
    write_weights,
)
from .seeds import derived_generator
from .sparsifier import Sparsifier
from .summary import LayerSummary, Summary
from .training_step import DivergedError, TrainingStep

_EVALUATION_BATCH = 1024


class TrainingError(Exception):
    """Training cannot go on; the message says why and what to change."""


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a run: its folder, accuracies in [0, 1], optimizer steps, seconds, layers.

    ``already_finished``: the run was complete before and nothing was trained.
    """

    out: Path
    test_accuracy: float
    test_loss: float
    train_accuracy: float
    steps: int
    seconds: float
    itop_rate: float
    summary: Summary
    already_finished: bool


def train(
    config: TrainConfig | str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train by a configuration (or recipe name or path) into the folder ``out``.

    With ``resume``, continues from the last checkpoint in ``out``; ``config`` may then be None.
    On the same machine, with the same number of threads, the result equals that of an
    undisturbed run bit for bit. Seeds torch's global generator.

    Raises ConfigError, DataError, RunFolderError (before any training) and TrainingError.
    """
    folder = Path(out)
    if config is None:
        if not resume:
            raise TypeError("config may only be None with resume=True")
        config = read_config(folder)
    elif not isinstance(config, TrainConfig):
        config = load_recipe(config)
    with ExitStack() as stack:
        stack.enter_context(open_run(folder, config, resume=resume))
        if is_finished(folder):
            if progress:
                Console(stderr=True).print(f"run {folder} is already finished; nothing to do")
            return _result(folder, already_finished=True)
        data = load_dataset(config.data, data_dir, config.augmentation)
        run = _Run(config, folder, data)
        if not resume:
            write_config(folder, config)
        start = run.restore() if resume and (folder / STATE).is_file() else 0
        try:
            metrics = MetricsWriter(folder / METRICS, start)
        except ValueError as error:
            raise RunFolderError(f"run {folder} cannot be resumed: {error}") from error
        try:
            with metrics, TrainingDisplay(progress, run.total_steps, folder.name) as display:
                run.train(metrics, display)
            write_weights(folder, run.step.evaluated, run.sparsifier.masks)
        except OSError as error:
            raise RunFolderError(
                f"cannot write to {folder}: {error}. Its last checkpoint is kept: make room, then "
                f"`fanin train --resume --out {folder}`"
            ) from error
    return _result(folder, already_finished=False)


class _Run:
    """Everything of a run that changes while it trains."""

    def __init__(self, config: TrainConfig, folder: Path, data: Dataset) -> None:
        self.config, self.folder = config, folder
        training = config.training
        self.device = _device(training.device)
        self.train_split, self.test_split = data.train.to(self.device), data.test.to(self.device)
        rounded = math.floor if training.drop_last else math.ceil
        self.batches = rounded(len(data.train) / training.batch_size)
        if self.batches == 0:
            raise ConfigError("drop_last leaves no batch: batch_size is larger than the data")
        self.total_steps = self.batches * training.epochs
        torch.manual_seed(training.seed)
        try:
            self.model = build_model(config).to(self.device)
        except ValueError as error:
            raise ConfigError(f"in [model]: {error}") from error
        self.optimizer = config.optimizer.build(self.model.parameters())
        self.scheduler = config.lr_schedule.build(self.optimizer, self.total_steps, self.batches)
        classes = describe(config.data)[1]
        self.step = TrainingStep(
            self.model, self.optimizer, self.scheduler, training, config.augmentation, classes
        )
        try:
            self.sparsifier = Sparsifier(
                self.model,
                self.optimizer,
                method=config.method,
                total_steps=self.total_steps,
                seed=training.seed,
                grad_scaler=self.step.scaler,
                **sparsifier_options(config),
            )
        except ValueError as error:
            raise ConfigError(f"in [sparsifier]: {error}") from error
        self.step.sparsifier = self.sparsifier
        self.progress = Progress()
        self.circumstances = Circumstances(
            data=data.fingerprint(),
            threads=torch.get_num_threads(),
            torch_version=str(torch.__version__),
            device=str(self.device),
        )

    def restore(self) -> int:
        """Load the checkpoint; returns the length that metrics.jsonl had then."""
        try:
            self.progress, before, metrics_bytes = load_checkpoint(
                self.folder / STATE, self._parts()
            )
        except ValueError as error:
            raise RunFolderError(f"run {self.folder} cannot be resumed: {error}") from error
        if before.data != self.circumstances.data:
            raise RunFolderError(
                f"run {self.folder} was started on other data; resume it with the same data folder"
            )
        if before != self.circumstances:
            warnings.warn(
                f"resuming under other circumstances ({before} before, {self.circumstances} now): "
                "the result may differ from an undisturbed run in the last bits",
                stacklevel=3,
            )
        return metrics_bytes

    def train(self, metrics: MetricsWriter, display: TrainingDisplay) -> None:
        """Train from the current position to the end."""
        every = self.config.training.checkpoint_every
        display.show(self.progress.step)
        while self.progress.epoch < self.config.training.epochs:
            started = time.perf_counter()
            for parts in self._epoch():
                self._step(parts, metrics)
                display.show(self.progress.step, self.progress.loss_sum / self.progress.seen)
                if every and self.progress.step % every == 0:
                    now = time.perf_counter()
                    self.progress.seconds += now - started
                    started = now
                    self._checkpoint(metrics)
            self.progress.seconds += time.perf_counter() - started
            self._finish_epoch(metrics)
            self._checkpoint(metrics)

    def _epoch(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Batches of the current epoch that are still to come, each in parts to accumulate."""
        training, epoch = self.config.training, self.progress.epoch
        order = epoch_order(len(self.train_split), training.seed, epoch)
        batches = order.split(training.batch_size)[self.progress.batch : self.batches]
        parts = [batch.split(math.ceil(len(batch) / training.accumulate)) for batch in batches]
        seeds = [
            (training.seed, epoch, self.progress.batch + number, part)
            for number, pieces in enumerate(parts)
            for part in range(len(pieces))
        ]
        flat = [piece for pieces in parts for piece in pieces]
        loaded = self.train_split.batches(flat, seeds)
        for pieces in parts:
            yield [next(loaded) for _ in pieces]

    def _step(self, parts: list[tuple[Tensor, Tensor]], metrics: MetricsWriter) -> None:
        at = self.progress
        mix = derived_generator(self.config.training.seed, "mixing", at.step)
        try:
            result = self.step(parts, int(torch.randint(2**31, (), generator=mix)))
        except (DivergedError, ValueError) as error:
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
            f"({self.config.optimizer.lr}); {self.folder} keeps its last checkpoint"
        )

    def _finish_epoch(self, metrics: MetricsWriter) -> None:
        at, summary = self.progress, self.sparsifier.summary()
        test_loss, test_accuracy = evaluate(self.step.evaluated, self.test_split)
        if not math.isfinite(test_loss):
            raise self._diverged(f"the test loss is {test_loss}")
        metrics.write(
            "epoch",
            epoch=at.epoch + 1,
            step=at.step,
            train_loss=at.loss_sum / at.seen,
            train_accuracy=at.correct / at.seen,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            density=summary.density,
            itop_rate=self.sparsifier.itop_rate,
            seconds=round(at.seconds, 3),
            layers=[asdict(row) for row in summary],
        )
        self.progress = Progress(epoch=at.epoch + 1, step=at.step, seconds=at.seconds)

    def _checkpoint(self, metrics: MetricsWriter) -> None:
        save_checkpoint(
            self.folder / STATE, self._parts(), self.progress, self.circumstances, metrics.sync()
        )

    def _parts(self) -> dict[str, object]:
        parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "sparsifier": self.sparsifier,
        }
        optional = {"scaler": self.step.scaler, "ema": self.step.ema}
        return parts | {name: part for name, part in optional.items() if part is not None}


@torch.no_grad()
def evaluate(model: nn.Module, split: DataSplit) -> tuple[float, float]:
    """Mean cross-entropy and accuracy in [0, 1] over a split, in evaluation mode."""
    training = model.training
    model.eval()
    loss, correct = 0.0, 0
    for inputs, labels in split.batches(torch.arange(len(split)).split(_EVALUATION_BATCH)):
        logits = model(inputs)
        loss += cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
    model.train(training)
    return loss / len(split), correct / len(split)


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise TrainingError("training.device is 'cuda', but torch finds no CUDA device")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _result(folder: Path, *, already_finished: bool) -> TrainResult:
    try:
        last = [r for r in read_metrics(folder / METRICS) if r["event"] == "epoch"][-1]
        return _result_of(folder, last, already_finished=already_finished)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunFolderError(
            f"run {folder} is finished and its weights are complete, but its {METRICS} is damaged "
            f"({type(error).__name__}: {error}); to have its figures again, train into another "
            "folder"
        ) from error


def _result_of(folder: Path, last: dict, *, already_finished: bool) -> TrainResult:
    rows = tuple(LayerSummary(**row | {"shape": tuple(row["shape"])}) for row in last["layers"])
    return TrainResult(
        out=folder,
        test_accuracy=last["test_accuracy"],
        test_loss=last["test_loss"],
        train_accuracy=last["train_accuracy"],
        steps=last["step"],
        seconds=last["seconds"],
        itop_rate=last["itop_rate"],
        summary=Summary(rows),
        already_finished=already_finished,
    )
