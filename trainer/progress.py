"""What a training run shows while it trains: a progress bar, or a line an epoch."""

import sys
from collections.abc import Mapping
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
    """Progress bar on standard error; shows nothing unless ``enabled``.

    Where standard error is no terminal, as in the log of a batch system, a line an epoch instead.
    """

    def __init__(self, enabled: bool, total_steps: int, title: str) -> None:
        console = Console(stderr=True)
        self._total, self._title = total_steps, title
        self._lines = enabled and not console.is_terminal
        self._enabled = enabled and console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._enabled,
        )
        self._task = self._progress.add_task(title, total=total_steps, loss="")

    def show(self, step: int, loss: float | None = None) -> None:
        """Move the bar to ``step`` and show the mean loss of the epoch so far."""
        text = "" if loss is None else f"loss {loss:.4f}"
        self._progress.update(self._task, completed=step, loss=text)

    def finish_epoch(self, step: int, figures: Mapping[str, float]) -> None:
        """Print the figures of an epoch as a line, where there is no bar."""
        if self._lines:
            text = ", ".join(
                f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items()
            )
            print(
                f"{self._title}: step {step} of {self._total}: {text}", file=sys.stderr, flush=True
            )

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
