"""What a benchmark returns: plain data, the content of results.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..measure.timing import Timing
from .case import Case

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Result:
    """A finished benchmark, with everything that is needed to judge or to repeat it."""

    kind: Literal["layer", "model"]
    title: str
    created: str
    seconds: float
    spec: dict[str, Any]
    timing: Timing
    machine: dict[str, Any]
    load_average_after: list[float] | None
    cases: tuple[Case, ...]
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return it as numbers, texts, lists and dicts only."""
        return dataclasses.asdict(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write results.json, results.md and results.png into ``folder``; returns their paths.

        The folder is made when missing; each file is replaced as a whole or not at all. Raises
        OSError when it cannot be written.
        """
        from ..suites.cases_report import save_report

        return save_report(self, Path(folder))
