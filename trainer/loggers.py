"""Where records of a run go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow."""

import importlib.util
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .config_table import ConfigError
from .recipe import TrainConfig, config_to_tables
from .tensorboard import EventWriter, numbers, require_tensorboard


class RecordLogger(Protocol):
    """Receives the records of a run."""

    def write(self, event: str, values: Mapping[str, object]) -> None:
        """Take a record of the kind ``event``; ``values`` has its step."""

    def flush(self) -> None:
        """Pass on what is buffered."""

    def close(self) -> None:
        """End the log."""


class WandbLogger:
    """Sends records to Weights & Biases, one run of theirs for a run folder.

    The run has the folder's name and resumes under the same id; project, entity and mode are those
    of the WANDB_* variables.

    Args:
        folder: run folder.
        config: becomes the run's configuration.

    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        import wandb

        self._run = wandb.init(
            id=run_id(folder),
            name=folder.name,
            dir=str(folder),
            config=config_to_tables(config),
            resume="allow",
        )

    def write(self, event: str, values: Mapping[str, object]) -> None:
        """Log the numbers of a record as EVENT/NAME, beside its step.

        W&B's own step must not fall, and it would after resuming; so ours is a figure of its own.
        """
        figures = {f"{event}/{name}": value for name, value in numbers(values)}
        self._run.log(figures | {"step": _step(values)})

    def flush(self) -> None:
        """Do nothing: W&B sends in the background."""

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MlflowLogger:
    """Sends records to MLflow, one run of theirs for a run folder.

    Server and experiment are those of the MLFLOW_* variables.

    Args:
        folder: run folder.
        config: becomes the run's parameters.

    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        import mlflow

        self._mlflow, name = mlflow, run_id(folder)
        found = mlflow.search_runs(
            filter_string=f"tags.fanin_run = '{name}'", output_format="list", max_results=1
        )
        mlflow.start_run(
            run_id=found[0].info.run_id if found else None,
            run_name=folder.name,
            tags={"fanin_run": name},
        )
        if not found:
            tables = config_to_tables(config)
            mlflow.log_params(
                {
                    f"{table}.{key}": value
                    for table, row in tables.items()
                    for key, value in row.items()
                }
            )

    def write(self, event: str, values: Mapping[str, object]) -> None:
        """Log the numbers of a record as EVENT/NAME at its step."""
        figures = {f"{event}/{name}": value for name, value in numbers(values)}
        self._mlflow.log_metrics(figures, step=_step(values))

    def flush(self) -> None:
        """Do nothing: each figure is sent at once."""

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


def run_id(folder: Path) -> str:
    """Return a name of the run folder that is valid as an id everywhere: its path's checksum."""
    return f"{folder.name}-{zlib.crc32(str(folder.resolve()).encode()):08x}"


def require_loggers(config: TrainConfig) -> None:
    """Raise ConfigError unless the packages of the loggers that a recipe wants are installed."""
    if config.training.tensorboard:
        require_tensorboard()
    for name in ("wandb", "mlflow"):
        if getattr(config.training, name) and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"training.{name} needs the {name} package; run: pip install 'fanin[{name}]', or "
                "remove that key"
            )


def open_loggers(config: TrainConfig, folder: Path, first_step: int) -> list[RecordLogger]:
    """Open the loggers that a recipe wants.

    Args:
        config: configuration.
        folder: run folder.
        first_step: of the records to come.

    """
    loggers: list[RecordLogger] = []
    if config.training.tensorboard:
        loggers.append(EventWriter(folder, first_step))
    if config.training.wandb:
        loggers.append(WandbLogger(folder, config))
    if config.training.mlflow:
        loggers.append(MlflowLogger(folder, config))
    return loggers


def _step(values: Mapping[str, Any]) -> int:
    return int(values["step"])
