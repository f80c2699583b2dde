"""Training by a recipe into a run folder."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from .data import Dataset, load_dataset
from .metrics import MetricsWriter, NoMetrics, Record, read_metrics
from .processes import Processes, joined_processes
from .progress import TrainingDisplay
from .recipe import TrainConfig, load_recipe
from .run_folder import (
    METRICS,
    STATE,
    RunFolderError,
    is_finished,
    open_run,
    read_config,
    write_config,
    write_weights,
)
from .summary import LayerSummary, Summary
from .tensorboard import EventWriter, require_tensorboard
from .training_run import TrainingError, TrainingRun


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

    Called in processes that torchrun has started, all of them train one model: each takes its
    share of every batch, and the first one writes ``out``, which all must see.

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
        device = _device(config.training.device)
        processes = stack.enter_context(joined_processes(device))
        if processes.is_first:
            stack.enter_context(open_run(folder, config, resume=resume))
        if processes.first_says(is_finished(folder)):
            if progress and processes.is_first:
                Console(stderr=True).print(f"run {folder} is already finished; nothing to do")
            return _result(folder, already_finished=True)
        if config.training.tensorboard:
            require_tensorboard()
        run = TrainingRun(config, folder, _data(config, data_dir, processes), device, processes)
        if processes.is_first and not resume:
            write_config(folder, config)
        started = resume and processes.first_says((folder / STATE).is_file())
        start = run.restore() if started else 0
        metrics = _metrics(run, start)
        try:
            shown = progress and processes.is_first
            with metrics, TrainingDisplay(shown, run.total_steps, folder.name) as display:
                run.train(metrics, display)
            if processes.is_first:
                write_weights(folder, run.step.evaluated, run.sparsifier.masks)
        except RuntimeError as error:
            if not _is_shortage(error):
                raise
            raise TrainingError(
                f"out of memory near step {run.progress.step + 1}: {str(error).splitlines()[0]}. "
                "Lower training.batch_size, or raise training.accumulate"
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"cannot write to {folder}: {error}. Its last checkpoint is kept: make room, then "
                f"`fanin train --resume --out {folder}`"
            ) from error
        processes.wait()
    return _result(folder, already_finished=False)


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise TrainingError("training.device is 'cuda', but torch finds no CUDA device")
    if not available or name == "cpu":
        return torch.device("cpu")
    index = os.environ.get("LOCAL_RANK")  # of torchrun: one GPU for each process
    return torch.device("cuda" if index is None else f"cuda:{index}")


def _is_shortage(error: RuntimeError) -> bool:
    # torch has a class of its own for a GPU's memory only.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _data(
    config: TrainConfig, data_dir: str | os.PathLike[str] | None, processes: Processes
) -> Dataset:
    """Load the data, the first process before the others: it may have to download it."""
    if not processes.is_first:
        processes.wait()
    data = load_dataset(config.data, data_dir, config.augmentation)
    if processes.is_first:
        processes.wait()
    return data


def _metrics(run: TrainingRun, start: int) -> MetricsWriter | NoMetrics:
    if not run.processes.is_first:
        return NoMetrics()
    events = None
    if run.config.training.tensorboard:
        events = EventWriter(run.folder, run.progress.step + 1)
    try:
        return MetricsWriter(run.folder / METRICS, start, events)
    except ValueError as error:
        raise RunFolderError(f"run {run.folder} cannot be resumed: {error}") from error


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


def _result_of(folder: Path, last: Record, *, already_finished: bool) -> TrainResult:
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
