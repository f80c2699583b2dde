"""The files behind a served model: its versions, and what tells that they have changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...onnx_file import external_files, read_model_file
from .settings import ModelSource

# Of the model file and each of its data files: path, inode, size, time of the last change in ns.
Stamp = tuple[tuple[str, int, int, int], ...]

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class Version:
    """A version on disk; ``stamp`` is empty where its model file cannot be seen."""

    name: str
    path: Path
    stamp: Stamp


class VersionFinder:
    """Looks for the versions of one model, newest first.

    A file is version 1. In a folder, each folder whose name is a number is a version; others are
    left alone, so that a new one can be written as ``.incoming`` and renamed.
    """

    def __init__(self, source: ModelSource):
        self._source = source
        self._external: dict[Path, tuple[Stamp, list[Path]]] = {}

    def find(self) -> list[Version]:
        """List what is there now; empty where there is nothing, or no permission to look."""
        path = self._source.path
        if path.suffix in (".onnx", ".ort") and not os.path.isdir(path):
            return [self._version("1", path)]
        try:
            names = [name for name in os.listdir(path) if os.path.isdir(path / name)]
        except OSError:
            return []
        numbers = sorted({name for name in names if _is_version(name)}, key=int, reverse=True)
        found = [self._version(name, path / name / MODEL_FILE) for name in numbers]
        listed = {version.path for version in found}
        self._external = {key: self._external[key] for key in self._external if key in listed}
        return found

    def is_unchanged(self, version: Version) -> bool:
        """Whether the version's files are still those that it was found with."""
        return self._version(version.name, version.path).stamp == version.stamp

    def _version(self, name: str, path: Path) -> Version:
        main = _stamp([path])
        known, files = self._external.get(path, ((), []))
        if main != known:
            try:
                files = external_files(path, read_model_file(path)) if main else []
            except OSError:  # perhaps of the moment: the next look reads it again
                return Version(name, path, main)
            except Exception:  # opening it tells why; the other versions are looked at meanwhile
                files = []
            self._external[path] = (main, files)
        return Version(name, path, main + _stamp(files) if main else ())


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 19 and str(int(name)) == name != "0"


def _stamp(files: list[Path]) -> Stamp:
    found = []
    for file in files:
        try:
            state = file.stat()
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            continue
        found.append((str(file), state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(found)
