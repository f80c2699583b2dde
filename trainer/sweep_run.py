"""One run of a sweep, and the record of its outcome."""

import os
from dataclasses import dataclass
from pathlib import Path

from .loop import TrainResult, train
from .run_folder import CONFIG, is_finished
from .sweep_config import SweepRun
from .training_run import TrainingError


@dataclass(frozen=True)
class SweepRecord:
    """Outcome of a run; a failed one has an ``error`` instead of figures.

    Attributes:
        name: name of the run's folder.
        variant: label of its variant.
        values: grid values by dotted key.
        test_accuracy: in [0, 1].
        train_accuracy: in [0, 1].
        density: fraction of active weights.
        itop_rate: fraction of weights that have ever been active.
        active: fraction of the neurons of sparse layers that hold weights.
        seconds: training time.
        error: why the run failed.

    """

    name: str
    variant: str
    values: dict[str, object]
    test_accuracy: float | None = None
    train_accuracy: float | None = None
    density: float | None = None
    itop_rate: float | None = None
    active: float | None = None
    seconds: float | None = None
    error: str | None = None


def run_one(
    run: SweepRun, folder: Path, data_dir: str | os.PathLike[str] | None = None
) -> SweepRecord:
    """Train one run, resume an interrupted one, or read the result of a finished one.

    Args:
        run: the run.
        folder: folder of the sweep.
        data_dir: folder that holds the data set.

    Raises:
        ConfigError: the configuration is wrong.
        DataError: the data are missing or damaged.
        RunFolderError: the run folder cannot be used.

    """
    out = folder / run.name
    resume = is_finished(out) or (out / CONFIG).is_file()
    try:
        result = train(run.config, out, resume=resume, data_dir=data_dir, progress=False)
    except TrainingError as error:
        return SweepRecord(run.name, run.variant, run.values, error=str(error))
    return _record(run, result)


def _record(run: SweepRun, result: TrainResult) -> SweepRecord:
    sparse = [row for row in result.summary if row.sparse]
    neurons = sum(row.shape[0] for row in sparse)
    return SweepRecord(
        run.name,
        run.variant,
        run.values,
        test_accuracy=result.test_accuracy,
        train_accuracy=result.train_accuracy,
        density=result.summary.density,
        itop_rate=result.itop_rate,
        active=sum(row.active for row in sparse) / neurons if neurons else None,
        seconds=result.seconds,
    )
