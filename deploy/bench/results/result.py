"""The envelope of plain data that every benchmark returns: the content of results.json."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...._base.texts import parse_json, read_text
from ..measure.machine import describe_machine, load_average
from ..measure.timing import Timing
from .plain import from_plain, to_plain

SCHEMA_VERSION = 2
"""Version 1 had the figures of every round, and an envelope per benchmark; it is still read."""

CaseT = TypeVar("CaseT")


@dataclass(frozen=True)
class Result(Generic[CaseT]):
    """A finished benchmark, with everything that is needed to judge or to repeat it.

    ``kind`` is the benchmark's name, ``spec`` its parameters, ``cases`` what it measured in each
    setting, ``facts`` what belongs to no case. ``parts`` are the files of the results that this one
    summarizes, by name.
    """

    kind: str
    title: str
    created: str
    seconds: float
    spec: dict[str, Any]
    timing: Timing | None
    machine: dict[str, Any]
    load_average_after: list[float] | None
    cases: tuple[CaseT, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def require_timing(self) -> Timing:
        """Return how the cases were timed; raises ResultFileError when that is missing."""
        if self.timing is None:
            raise ResultFileError(f"the result {self.title!r} does not say how it was timed")
        return self.timing

    def to_dict(self, *, raw: bool = False) -> dict[str, Any]:
        """Return it as plain data; the figures of every round only with ``raw``."""
        plain: dict[str, Any] = to_plain(self, raw=raw)
        return plain


class Recorder:
    """Records when a benchmark starts and on which machine; ``result`` makes the envelope."""

    def __init__(self) -> None:
        self.machine = describe_machine()
        self._created, self._started = datetime.now(UTC), time.perf_counter()

    def result(
        self,
        kind: str,
        title: str,
        spec: dict[str, Any],
        timing: Timing | None,
        cases: tuple[CaseT, ...],
        **facts: Any,
    ) -> Result[CaseT]:
        """Make the result of the cases measured so far."""
        return Result(
            kind=kind,
            title=title,
            created=self._created.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self._started,
            spec=spec,
            timing=timing,
            machine=self.machine,
            load_average_after=load_average(),
            cases=cases,
            facts=facts,
        )


class ResultFileError(ValueError):
    """A file that is not a benchmark result, or not of a requested kind."""


def read_result(path: Path, case_types: dict[str, type]) -> Result[Any]:
    """Read a ``results.json``.

    Args:
        path: the file.
        case_types: accepted kinds of results, and the types of their cases.

    Raises:
        ResultFileError: the file is damaged, or not such a result.
        OSError: it cannot be read.

    """
    try:
        data = parse_json(read_text(path))
    except ValueError as error:
        raise ResultFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("kind") not in case_types:
        names = " or ".join(f"fanin bench {kind}" for kind in case_types)
        raise ResultFileError(f"{path} is not a result of {names}")
    version = data.get("schema_version")
    if version not in (1, SCHEMA_VERSION):
        raise ResultFileError(
            f"{path} has schema_version {version}, this fanin reads 1 and {SCHEMA_VERSION}; "
            "measure again"
        )
    try:
        if version == 1:
            data = _from_version_1(data)
        cases = [from_plain(case_types[data["kind"]], case) for case in data["cases"]]
        result: Result[Any] = from_plain(Result, {**data, "cases": cases})
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ResultFileError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return result


_CASES_IN_VERSION_1 = {"memory": "engines", "serving": "rows", "crossover": "points"}


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    known = {one.name for one in fields(Result)}
    cases = data.get(_CASES_IN_VERSION_1.get(data["kind"], "cases"))
    scaling = data["kind"] == "layer" and "axis" in data.get("spec", {})
    return {
        "timing": None,
        "load_average_after": None,
        **{name: value for name, value in data.items() if name in known},
        "kind": "scaling" if scaling else data["kind"],
        "cases": cases,
        "facts": {name: value for name, value in data.items() if name not in known},
        "schema_version": SCHEMA_VERSION,
    }
