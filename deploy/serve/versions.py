"""The versions of a model on disk, and how changes to them are detected."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...onnx_file import external_files, read_model_file
from .settings import ModelSource

# For the model file and each data file: path, inode, size, modification time in ns.
FileStamps = tuple[tuple[str, int, int, int], ...]

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class Version:
    """A version on disk; ``stamp`` is empty if its model file is not accessible."""

    name: str
    path: Path
    stamp: FileStamps


class VersionFinder:
    """Finds the versions of one model, newest first.

    A file is version 1. In a folder, each subfolder whose name is a number is a version. Others are
    ignored, so a new version can be written as ``.incoming`` and then renamed.
    """

    def __init__(self, source: ModelSource, config: Path | None = None):
        """Find versions of ``source``, which also change with the file ``config``."""
        self._source = source
        self._config = [] if config is None else [config]
        self._external: dict[Path, tuple[FileStamps, list[Path]]] = {}

    def find(self) -> list[Version]:
        """List the versions that exist now; empty if there are none or access is denied."""
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
        """Return whether the version's files are the same as when it was found."""
        return self._version(version.name, version.path).stamp == version.stamp

    def _version(self, name: str, path: Path) -> Version:
        main = stamps([path])
        known, files = self._external.get(path, ((), []))
        if main != known:
            try:
                files = external_files(path, read_model_file(path)) if main else []
            except OSError:  # perhaps transient; the next poll reads it again
                return Version(name, path, main)
            except Exception:  # reported when the version is opened; must not stop the others
                files = []
            self._external[path] = (main, files)
        return Version(name, path, main + stamps(files + self._config) if main else ())

    def config_stamp(self) -> FileStamps:
        """Return the stamp of the configuration; empty if there is none."""
        return stamps(self._config)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 19 and str(int(name)) == name != "0"


def stamps(files: list[Path]) -> FileStamps:
    """Return the stamps of the files that exist."""
    found = []
    for file in files:
        try:
            state = file.stat()
        except (OSError, ValueError):  # ValueError: a NUL byte in the name
            continue
        found.append((str(file), state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(found)
