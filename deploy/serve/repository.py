"""The server's models: which versions are served, and how new versions replace them.

Only models that the server was started with are ever opened, and those in the folder that it was
given as a model repository; requests name models, never files. A version that cannot be opened
never replaces one that is served, nor, with trials, does one that would crash the process; the
reason is kept for the index, the log and the metrics. It is tried again when its files change.
After a transient failure (out of memory, descriptors, threads or disk space) it is also retried
with the same files, at growing intervals.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .errors import RequestError
from .loaded_model import LoadedModel
from .logs import event
from .model_entry import ModelEntry, Observer
from .model_folder import ModelFolder
from .settings import ServeSettings
from .trial import Trial

_log = logging.getLogger("fanin.serve")

_TWICE = "a model of that name was given one by one: rename the folder in the model repository"


class Repository:
    """All models by name. Thread-safe; loading blocks its caller."""

    def __init__(
        self,
        settings: ServeSettings,
        observer: Observer = lambda *_: None,
        trial: Trial | None = None,
        on_run: Callable[[str, str], None] = lambda *_: None,
    ):
        """Create the repository; nothing is loaded yet.

        Args:
            settings: The server's.
            observer: Called after each attempt to load.
            trial: Tries versions before they are opened.
            on_run: Called with model and version after each successful run.

        """
        self._trial = trial
        self._new_entry = partial(
            ModelEntry, settings=settings, observer=observer, trial=trial, on_run=on_run
        )
        # Replaced as a whole, so readers need no lock.
        self._entries = {source.name: self._new_entry(source) for source in settings.models}
        self._folder = None
        if settings.model_repository is not None:
            self._folder = ModelFolder(settings.model_repository)
        self._lock = threading.Lock()

    def open(self) -> None:
        """Load every model; SessionError for the first without a version that opens."""
        if self._folder is not None:
            self._folder.require_readable()
        self._find_models()
        with self._trials():
            for entry in self._entries.values():
                entry.refresh(settled_only=False)
                if not entry.serving:
                    raise entry.why_nothing_serves()

    def names(self) -> list[str]:
        """List the names of all models."""
        return list(self._entries)

    def find(self, model: str, version: str | None = None) -> LoadedModel:
        """Return a served version, by default the newest; RequestError (404) if there is none."""
        serving = self._entry(model).serving
        if not serving:
            raise RequestError(
                f"model '{model}' is not loaded; POST /v2/repository/models/{model}/load loads it",
                404,
            )
        if version is None:
            return next(iter(serving.values()))
        if version not in serving:
            raise RequestError(
                f"model '{model}' serves version {', '.join(serving)}, not '{version[:40]}'", 404
            )
        return serving[version]

    def versions(self, name: str) -> list[str]:
        """List the served versions of a model, newest first."""
        return list(self._entry(name).serving)

    def serving(self) -> list[LoadedModel]:
        """List all served versions of all models."""
        return [model for entry in self._entries.values() for model in entry.serving.values()]

    def load(self, name: str) -> None:
        """Load what is on disk now; RequestError if the newest version does not open."""
        self._find_models(removals=False)
        entry = self._entry(name)
        entry.wanted = True
        with self._trials():
            if self._trial is not None:
                self._trial.forget()
            entry.refresh(settled_only=False, again=True)
        if entry.failures:
            version, failure = next(iter(entry.failures.items()))
            kept = ", ".join(entry.serving)
            state = f"version {kept} is still served" if kept else "no version is served"
            subject = f"version {version} of '{name}'" if version else f"'{name}'"
            raise RequestError(
                f"{subject} does not load: {failure} ({state})",
                400 if failure.delay is None else 503,
            )
        if not entry.serving and not entry.wanted:
            raise RequestError(f"'{name}' was unloaded by another request; try again", 409)
        if not entry.serving:
            raise RequestError(str(entry.why_nothing_serves()), 400)

    def unload(self, name: str) -> None:
        """Finish the pending requests of a model and free it."""
        entry = self._entry(name)
        entry.wanted = False
        entry.refresh()

    def refresh(self) -> None:
        """Load files that have changed on disk and then stayed unchanged for one poll."""
        self._find_models()
        with self._trials():
            for entry in self._entries.values():
                if self._folder is not None and self._folder.may_be_gone(entry.name):
                    continue  # the next look decides
                try:
                    entry.refresh()
                except Exception:  # whatever it is, polling must continue
                    _log.exception("checking '%s' for changes failed", entry.name)

    def close(self) -> None:
        """Finish all requests and free all models."""
        for entry in self._entries.values():
            entry.wanted = False
            entry.refresh()

    def index(self) -> list[dict[str, Any]]:
        """Return the rows of the protocol's repository index."""
        return [row for entry in self._entries.values() for row in entry.index()]

    def _find_models(self, *, removals: bool = True) -> None:
        """Add the models that are new in the folder; unload and remove those gone from it."""
        if self._folder is None:
            return
        with self._lock:
            found, gone = self._folder.changes(removals)
            added = {name: self._new_entry(source) for name, source in found.items()}
            clashing = [name for name in added if name in self._entries]
            for name in clashing:
                del added[name]
                event(_log, "model ignored", logging.ERROR, model=name, reason=_TWICE)
            entries = {**self._entries, **added}
            removed = [entries.pop(name) for name in gone]
            self._entries = entries
        for entry in removed:
            entry.wanted = False
            entry.refresh()

    @contextlib.contextmanager
    def _trials(self) -> Iterator[None]:
        """Use one process for all trials of a pass, and end it afterwards."""
        try:
            yield
        finally:
            if self._trial is not None:
                self._trial.end()

    def _entry(self, name: str) -> ModelEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise RequestError(f"this server has no model '{name[:100]}'", 404)
        return entry
