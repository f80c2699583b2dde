"""Cases of a long benchmark on disk, so that it can be stopped and resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...._base.atomic import output_folder
from .case import Case
from .files import write_json
from .plain import from_plain, to_plain


class CaseStore:
    """A folder with a file for each finished case, and the conditions of their measurement.

    ``conditions`` are plain data; a folder with other ones (another benchmark, machine or version)
    is rejected with StoreError.
    """

    def __init__(self, folder: Path, conditions: dict[str, Any]):
        self._folder = folder
        output_folder(folder)
        file = folder / "conditions.json"
        conditions = json.loads(json.dumps(conditions))
        if not file.exists():
            write_json(file, conditions)
        found = json.loads(file.read_text())
        keys = sorted(found.keys() | conditions.keys())
        differing = [key for key in keys if found.get(key) != conditions.get(key)]
        if differing:
            raise StoreError(
                f"{folder} holds cases measured with different {', '.join(differing)}; choose "
                "another folder for the results, or delete this one"
            )

    def get(self, title: str) -> Case | None:
        """Read a case; None when it is not stored."""
        file = self._file(title)
        return from_plain(Case, json.loads(file.read_text())) if file.exists() else None

    def put(self, case: Case) -> None:
        """Write a finished case."""
        write_json(self._file(case.title), to_plain(case, raw=True))

    def _file(self, title: str) -> Path:
        return self._folder / (re.sub(r"[^0-9A-Za-z.]+", "-", title).strip("-") + ".json")


class StoreError(ValueError):
    """A folder holds results that do not belong together."""
