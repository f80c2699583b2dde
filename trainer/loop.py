"""Training by a recipe into a run folder."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from .backends import backend_switches
from .data import Dataset, load_dataset
from .loggers import open_loggers, require_loggers
from .metrics import MetricsWriter, NullMetricsWriter, Record, read_metrics
from .processes import Processes, distributed_processes
from .progress import TrainingDisplay
from .recipe import TrainConfig, load_recipe
from .run_folder import (
    METRICS,
    STATE,
    RunFolderError,
    is_finished,
    keep_best_weights,
    open_run,
    read_config,
    write_config,
    write_weights,
)
from .summary import LayerSummary, Summary
from .training_run import TrainingError, TrainingRun


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a run: the figures of the epoch whose weights were kept.

    Attributes:
        out: run folder.
        test_accuracy: in [0, 1].
        test_loss: mean cross-entropy.
        train_accuracy: in [0, 1].
        steps: optimizer steps.
        seconds: training time.
        itop_rate: fraction of the weights that have ever been active.
        summary: sparsity of each layer.
        already_finished: whether the run was complete before, so that nothing was trained.

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
    """Train a configuration into a run folder.

    On the same machine with the same number of threads, a resumed run equals an uninterrupted one
    bit for bit. Seeds torch's global generator. Under torchrun, all processes train one model: each
    takes its share of every batch, and rank 0 writes the folder, which all must share.

    Args:
        config: configuration, recipe name, or path to a recipe; None only with ``resume``.
        out: run folder.
        resume: continue from the last checkpoint in ``out``.
        data_dir: folder that holds the data set.
        progress: show a progress bar on standard error.

    Raises:
        ConfigError: the configuration is wrong.
        DataError: the data are missing or damaged.
        RunFolderError: the folder cannot be used.
        TrainingError: training diverged or ran out of memory.

    """
    folder = Path(out)
    if config is None:
        if not resume:
            raise TypeError("config can only be None with resume=True")
        config = read_config(folder)
    elif not isinstance(config, TrainConfig):
        config = load_recipe(config)
    with ExitStack() as stack:
        device = _device(config.training.device)
        processes = stack.enter_context(distributed_processes(device))
        if processes.is_first:
            stack.enter_context(open_run(folder, config, resume=resume))
        if processes.broadcast_object(is_finished(folder)):
            if progress and processes.is_first:
                Console(stderr=True).print(f"Run {folder} is already finished; nothing to do.")
            return _result(folder, already_finished=True)
        require_loggers(config)
        stack.enter_context(backend_switches(config.training, device))
        started = resume and processes.broadcast_object((folder / STATE).is_file())
        data = _data(config, data_dir, processes)
        run = TrainingRun(config, folder, data, device, processes, resumed=started)
        if processes.is_first and not resume:
            write_config(folder, config)
        start = run.restore() if started else 0
        metrics = _metrics(run, start)
        try:
            shown = progress and processes.is_first
            with metrics, TrainingDisplay(shown, run.total_steps, folder.name) as display:
                run.train(metrics, display)
            if processes.is_first:
                if config.training.keep == "best":
                    keep_best_weights(folder)
                else:
                    write_weights(folder, run.step.eval_model, run.sparsifier.masks)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory near step {run.progress.step + 1}: {str(error).splitlines()[0]}. "
                "Lower training.batch_size, or raise training.accumulate"
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"cannot write to {folder}: {error}. Its last checkpoint is intact: free some "
                f"space, then run `fanin train --resume --out {folder}`"
            ) from error
        processes.barrier()
    return _result(folder, already_finished=False)


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise TrainingError("training.device is 'cuda', but torch finds no CUDA device")
    if not available or name == "cpu":
        return torch.device("cpu")
    index = os.environ.get("LOCAL_RANK")  # set by torchrun; one GPU per process
    return torch.device("cuda" if index is None else f"cuda:{index}")


def _is_out_of_memory(error: RuntimeError) -> bool:
    # torch has an error class for GPU memory only.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _data(
    config: TrainConfig, data_dir: str | os.PathLike[str] | None, processes: Processes
) -> Dataset:
    """Load the data, rank 0 first because it may have to download them."""
    if not processes.is_first:
        processes.barrier()
    data = load_dataset(config.data, data_dir, config.augmentation)
    if processes.is_first:
        processes.barrier()
    return data


def _metrics(run: TrainingRun, start: int) -> MetricsWriter | NullMetricsWriter:
    if not run.processes.is_first:
        return NullMetricsWriter()
    loggers = open_loggers(run.config, run.folder, run.progress.step + 1)
    try:
        return MetricsWriter(run.folder / METRICS, start, loggers)
    except ValueError as error:
        raise RunFolderError(f"run {run.folder} cannot be resumed: {error}") from error


def _result(folder: Path, *, already_finished: bool) -> TrainResult:
    try:
        epochs = [r for r in read_metrics(folder / METRICS) if r["event"] == "epoch"]
        kept = epochs[-1]
        if read_config(folder).training.keep == "best":  # the first of equals, as it was written
            kept = max(epochs, key=lambda record: record["validation_accuracy"])
        return _result_of(folder, kept, already_finished=already_finished)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunFolderError(
            f"run {folder} is finished and its weights are complete, but its {METRICS} is damaged "
            f"({type(error).__name__}: {error}). Its figures are lost; to get them again, train "
            "into another folder"
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
