"""TensorBoard events of a run, in addition to metrics.jsonl."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

from .config_table import ConfigError

FOLDER = "tensorboard"


class EventWriter:
    """Writes the numbers of each record as scalars named EVENT/NAME.

    Args:
        run_folder: run folder.
        first_step: TensorBoard hides events from this step on that an interrupted run left.

    Raises:
        ConfigError: the tensorboard package is missing.

    """

    def __init__(self, run_folder: Path, first_step: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run_folder / FOLDER), purge_step=first_step)

    def write(self, event: str, values: Mapping[str, object]) -> None:
        """Write the numbers of a record at its step."""
        for name, value in numbers(values):
            self._writer.add_scalar(f"{event}/{name}", value, values["step"])

    def flush(self) -> None:
        """Write buffered events to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def require_tensorboard() -> None:
    """Raise ConfigError unless the tensorboard package can be imported."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "training.tensorboard needs the tensorboard package; run: "
            "pip install 'fanin[tensorboard]', or remove that key"
        ) from error


def numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record; those of layers as layers/NAME/LAYER."""
    for name, value in values.items():
        if name == "layers" and isinstance(value, Mapping | list):
            rows = value if isinstance(value, Mapping) else {row["name"]: row for row in value}
            for layer, figures in rows.items():
                for figure, number in numbers(figures):
                    yield f"layers/{figure}/{layer}", number
        elif name not in ("step", "epoch") and is_number(value):
            yield name, value


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value of a record is a figure."""
    return isinstance(value, int | float) and not isinstance(value, bool)
