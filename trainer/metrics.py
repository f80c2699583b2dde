"""metrics.jsonl: one JSON object a line, appended while training runs."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from .._base.texts import parse_json

Record = dict[str, Any]
"""A line as it was read: what it holds shows under ``expected_content`` only."""


class Mirror(Protocol):
    """Something else that takes the records, such as ``tensorboard.EventWriter``."""

    def write(self, event: str, values: dict[str, object]) -> None:
        """Take a record."""

    def flush(self) -> None:
        """Make sure that the records so far can be read."""

    def close(self) -> None:
        """No record will follow."""


class MetricsWriter:
    """Appends records to a file, starting after its first ``start`` bytes.

    Whatever lies behind ``start`` was written after the checkpoint that training resumes from,
    and is cut off. ``mirror`` gets each record, too. Raises ValueError when the file is shorter
    than that.
    """

    def __init__(self, path: Path, start: int = 0, mirror: Mirror | None = None) -> None:
        path.touch()
        if path.stat().st_size < start:
            raise ValueError(
                f"{path} is shorter than when the checkpoint was written ({start} bytes)"
            )
        os.truncate(path, start)
        self._file, self._mirror = path.open("ab"), mirror

    def write(self, event: str, **values: object) -> None:
        """Append one record; ``event`` says of what kind."""
        line = json.dumps({"event": event, **values}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        if self._mirror is not None:
            self._mirror.write(event, values)

    def sync(self) -> int:
        """Force the records to disk and return the file's length in bytes."""
        if self._mirror is not None:
            self._mirror.flush()
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
        if self._mirror is not None:
            self._mirror.close()


class NoMetrics:
    """Takes records and keeps none: the processes that do not write the files."""

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
def expected_content(path: Path) -> Iterator[None]:
    """Raise ValueError, naming ``path``, where records turn out not to be what training writes."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold what training writes ({type(error).__name__}: {error})"
        ) from error


def read_metrics(path: Path) -> list[Record]:
    """All records. Raises ValueError for a line that is not a JSON object."""
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
