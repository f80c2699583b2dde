"""The progress bar of a training run."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class TrainingDisplay:
    """Progress bar on standard error; shows nothing unless ``enabled``."""

    def __init__(self, enabled: bool, total_steps: int, title: str) -> None:
        self._enabled = enabled
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not enabled,
        )
        self._task = self._progress.add_task(title, total=total_steps, loss="")

    def show(self, step: int, loss: float | None = None) -> None:
        """Move the bar to ``step`` and show the mean loss of the epoch so far."""
        text = "" if loss is None else f"loss {loss:.4f}"
        self._progress.update(self._task, completed=step, loss=text)

    def __enter__(self) -> Self:
        if self._enabled:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._enabled:  # rich before 15 prints an empty line when a disabled bar stops
            self._progress.stop()
