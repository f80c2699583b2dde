"""Writes result files as compact JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...._base.atomic import write_file


def write_json(path: Path, data: dict[str, Any]) -> Path:
    """Write plain data with compact_json; the file is replaced as a whole or not at all."""
    return write_file(path, compact_json(data))


def compact_json(data: dict[str, Any]) -> str:
    """Format with one line per key, per case of ``cases`` and per engine of a case.

    So a result has as many lines as it has things to compare, and a later one differs from it in
    the lines of what changed.
    """
    return _braced([_pair(key, data, _cases if key == "cases" else _line) for key in data]) + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _pair(key: str, data: dict[str, Any], write: Callable[[Any], str]) -> str:
    return f"{_line(key)}: {write(data[key])}"


def _braced(pairs: list[str]) -> str:
    return "{" + ",\n ".join(pairs) + "}"


def _cases(cases: list[dict[str, Any]]) -> str:
    return "[" + ",".join(f"\n  {_case(case)}" for case in cases) + "]"


def _case(case: dict[str, Any]) -> str:
    """Format the engines last, below the rest."""
    rest = _line({key: value for key, value in case.items() if key != "engines"})
    if "engines" not in case:
        return rest
    engines = ",".join(f"\n    {_line(engine)}" for engine in case["engines"])
    return f'{rest[:-1]}, "engines": [{engines}]}}'
