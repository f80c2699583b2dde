"""The models in a model repository: a folder that holds one folder for each of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import SessionError
from .logs import event
from .settings import ModelSource, why_no_model_name

_log = logging.getLogger("fanin.serve")

_DEAD_LINK = "it is a link that leads nowhere"
_STRAY_FILE = "a model is a folder here: move the file to NAME/1/model.onnx"


class ModelFolder:
    """Watches a model repository for models that come and go.

    A name that begins with a dot is passed over without a word, so that a model can be written as
    ``.incoming`` and then renamed.
    """

    def __init__(self, path: str):
        self._path = Path(path)
        self._known: set[str] = set()
        self._missing: set[str] = set()  # at the last look
        self._trouble = ""  # why it could not be read, at the last look
        self._refused: set[tuple[str, str]] = set()  # name, reason

    def require_readable(self) -> None:
        """Raise SessionError unless the folder can be read."""
        try:
            os.listdir(self._path)
        except OSError as error:
            raise SessionError(
                f"the model repository cannot be read: {error.strerror or error}",
                "Name a folder that holds a folder for each model (NAME/1/model.onnx).",
                model=self._path,
            ) from error

    def may_be_gone(self, name: str) -> bool:
        """Return whether a model was missing at the last look that finds out what is gone."""
        return name in self._missing

    def changes(self, removals: bool) -> tuple[dict[str, ModelSource], list[str]]:
        """Look at the folder.

        Args:
            removals: Whether this is one of the looks that find out what is gone.

        Returns:
            The models that are new, by name, and the names of those that are gone. A model is gone
            when it is missing twice in a row from a folder that can be read: a model that is being
            replaced may be missing for a moment, and a network disk for longer.

        """
        try:
            with os.scandir(self._path) as entries:
                folders, refused = self._sorted(entries)
        except OSError as error:
            if str(error) != self._trouble:
                event(_log, "model repository unreadable", logging.ERROR, reason=str(error))
            self._trouble = str(error)
            return {}, []
        self._trouble = ""
        problems = {name: why_no_model_name(name) for name in folders}
        usable = {name for name, problem in problems.items() if not problem}
        for name in folders - usable:
            refused[name] = f"it cannot have this name: {problems[name]}"
        self._tell_refused({item for item in refused.items() if not item[0].startswith(".")})
        added = {
            name: ModelSource(name, self._path / name, configured=True)
            for name in sorted(usable - self._known)
        }
        self._known |= usable
        if not removals:
            return added, []
        missing = self._known - usable
        gone = missing & self._missing
        self._missing = missing - gone
        self._known -= gone
        return added, sorted(gone)

    def _sorted(self, entries: Iterable[os.DirEntry[str]]) -> tuple[set[str], dict[str, str]]:
        """Return the names of the folders, and why other entries are no models."""
        folders, refused = set(), {}
        for entry in entries:
            try:
                if entry.is_dir():
                    folders.add(entry.name)
                elif entry.name.endswith(".onnx"):
                    refused[entry.name] = _STRAY_FILE
                elif entry.is_symlink() and not os.path.exists(entry.path):
                    refused[entry.name] = _DEAD_LINK
            except OSError as error:  # a link to itself, say; it must not hide the others
                if entry.name in self._known:  # perhaps for a moment
                    folders.add(entry.name)
                else:
                    refused[entry.name] = f"it cannot be read: {error.strerror or error}"
        return folders, refused

    def _tell_refused(self, refused: set[tuple[str, str]]) -> None:
        for name, reason in sorted(refused - self._refused):
            event(_log, "model ignored", logging.WARNING, model=name, reason=reason)
        self._refused = refused
