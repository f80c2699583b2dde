"""metrics.jsonl: one JSON object per line, appended during training."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .._base.texts import parse_json
from .loggers import RecordLogger

Record = dict[str, Any]
"""A line as read; access its content within ``checked_content``."""


class MetricsWriter:
    """Appends records to a file, after its first ``start`` bytes.

    Anything beyond ``start`` was written after the checkpoint that training resumes from, and is
    cut off.

    Args:
        path: the file.
        start: bytes to keep.
        loggers: receive each record, too.

    Raises:
        ValueError: the file is shorter than ``start``.

    """

    def __init__(self, path: Path, start: int = 0, loggers: Sequence[RecordLogger] = ()) -> None:
        path.touch()
        if path.stat().st_size < start:
            raise ValueError(
                f"{path} is shorter than it was at the last checkpoint ({start} bytes)"
            )
        os.truncate(path, start)
        self._file, self._loggers = path.open("ab"), loggers

    def write(self, event: str, **values: object) -> None:
        """Append one record of the kind ``event``."""
        line = json.dumps({"event": event, **values}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        for logger in self._loggers:
            logger.write(event, values)

    def sync(self) -> int:
        """Flush the records to disk and return the length of the file in bytes."""
        for logger in self._loggers:
            logger.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        for logger in self._loggers:
            logger.close()


class NullMetricsWriter:
    """Discards records, in processes that do not write files."""

    def write(self, event: str, **values: object) -> None:
        """Do nothing."""

    def sync(self) -> int:
        """Return 0."""
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def checked_content(path: Path) -> Iterator[None]:
    """Turn errors about unexpected content of ``path`` into a ValueError that names it."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} has unexpected content ({type(error).__name__}: {error})"
        ) from error


def read_metrics(path: Path) -> list[Record]:
    """Read all records.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not a JSON object.

    """
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"line {number} of {path} is not a JSON object")
        records.append(record)
    return records
