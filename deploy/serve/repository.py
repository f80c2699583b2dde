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

from ..errors import SessionError
from .errors import RequestError
from .load_failure import LoadFailure
from .loaded_model import LoadedModel
from .logs import event
from .memory import release_unused
from .model_folder import ModelFolder
from .model_options import ModelOptions, OptionsFile
from .settings import ModelSource, ServeSettings
from .trial import Trial
from .versions import FileStamps, Version, VersionFinder

_log = logging.getLogger("fanin.serve")

_TWICE = "a model of that name was given one by one: rename the folder in the model repository"

# Called after each attempt to load with the model, the version, and the failure or None.
Observer = Callable[[str, str, LoadFailure | None], None]


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
            _Entry, settings=settings, observer=observer, trial=trial, on_run=on_run
        )
        # Replaced as a whole, so readers need no lock.
        self._entries = {source.name: self._new_entry(source) for source in settings.models}
        self._folder = None
        if settings.model_repository is not None:
            self._folder = ModelFolder(settings.model_repository)
        self._lock = threading.Lock()

    def open(self) -> None:
        """Load every model; SessionError for the first without a version that opens."""
        self._find_models()
        with self._trials():
            for entry in self._entries.values():
                entry.refresh(settled_only=False)
                if not entry.serving:
                    raise entry.why_nothing_serves()

    def names(self) -> list[str]:
        """List the names of all models."""
        return list(self._entries)

    def has(self, name: str) -> bool:
        """Return whether there is a model of this name, loaded or not."""
        return name in self._entries

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

    def ready(self) -> bool:
        """Return whether every model is served that was not unloaded on request."""
        return all(entry.serving for entry in self._entries.values() if entry.wanted)

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
            raise RequestError(
                f"version {version} of '{name}' does not load: {failure} ({state})",
                400 if failure.delay is None else 503,
            )

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

    def _find_models(self, removals: bool = True) -> None:
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

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise RequestError(f"this server has no model '{name[:100]}'", 404)
        return entry


class _Entry:
    """One model. ``serving`` is replaced as a whole, so readers need no lock."""

    def __init__(
        self,
        source: ModelSource,
        settings: ServeSettings,
        observer: Observer,
        trial: Trial | None,
        on_run: Callable[[str, str], None],
    ):
        self.name = source.name
        self.wanted = True
        self.serving: dict[str, LoadedModel] = {}
        self.failures: dict[str, LoadFailure] = {}
        self._source = source
        self._settings = settings
        self._observer = observer
        self._trial = trial
        self._on_run = on_run
        self._options = OptionsFile(source.path if source.configured else None, settings)
        self._finder = VersionFinder(source, self._options.path)
        self._failed: dict[str, LoadFailure] = {}
        self._seen: dict[str, FileStamps] = {}
        self._lock = threading.Lock()

    def refresh(self, *, settled_only: bool = True, again: bool = False) -> None:
        """Update ``serving`` from the disk; ``again`` also retries unchanged files that failed."""
        with self._lock:
            if again:
                self._failed = {}
            before = self.serving
            after = self._choose(settled_only) if self.wanted else {}
            self.serving = after
            if not self.wanted:
                self.failures, self._failed = {}, {}
            gone = [model for model in before.values() if model not in after.values()]
            for model in gone:
                model.close()
                event(_log, "unloaded", model=self.name, version=model.version.name)
            if gone:
                del model, gone, before
                release_unused()

    def why_nothing_serves(self) -> SessionError:
        """Return the error to report after a refresh that left nothing served."""
        for version, failure in self.failures.items():
            return SessionError(
                f"version {version} of model '{self.name}' does not load: {failure.reason}", ""
            )
        return SessionError(
            f"model '{self.name}' has no version",
            "Name an .onnx file, or a folder with 1/model.onnx.",
            model=self._source.path,
        )

    def index(self) -> list[dict[str, Any]]:
        """Return this model's rows of the repository index."""
        rows = [
            {
                "name": self.name,
                "version": version,
                "state": "READY",
                "reason": str(self.failures.get(version, "")),
            }
            for version in self.serving
        ]
        rows += [
            {"name": self.name, "version": version, "state": "UNAVAILABLE", "reason": str(failure)}
            for version, failure in self.failures.items()
            if version not in self.serving
        ]
        if not rows:
            reason = "no version was found" if self.wanted else "unloaded"
            rows = [{"name": self.name, "version": "", "state": "UNAVAILABLE", "reason": reason}]
        return rows

    def _choose(self, settled_only: bool) -> dict[str, LoadedModel]:
        """Walk down from the newest version until enough versions are served."""
        found = self._finder.find()
        try:
            options = self._options.read(settled_only)
        except SessionError as error:
            failure = LoadFailure.of(error, self._finder.config_stamp(), None)
            unusable = dict.fromkeys([version.name for version in found] or [""], failure)
            self._tell_once(unusable)
            self.failures = unusable
            return self.serving
        found = options.selected(found)
        most = options.applied_to(self._settings).versions
        chosen: dict[str, LoadedModel] = {}
        failures: dict[str, LoadFailure] = {}
        for version in found:
            if len(chosen) == most:
                break
            model = self._current(version, options, settled_only, failures)
            if model is not None:
                chosen[version.name] = model
        self._seen = {version.name: version.stamp for version in found}
        self._failed = {name: self._failed[name] for name in self._failed if name in self._seen}
        if not chosen and self.serving:
            # Nothing on disk can be served: keep what is loaded, and tell why in the index.
            if not found:
                gone = LoadFailure("its files are missing or inaccessible")
                failures = dict.fromkeys(self.serving, gone)
                self._tell_once(failures)
            chosen = self.serving
        self.failures = failures
        return chosen

    def _current(
        self,
        version: Version,
        options: ModelOptions,
        settled_only: bool,
        failures: dict[str, LoadFailure],
    ) -> LoadedModel | None:
        """Return what to serve for this version: the loaded model, a new one, or None."""
        loaded = self.serving.get(version.name)
        if loaded is not None and loaded.version.stamp == version.stamp:
            self._failed.pop(version.name, None)
            return loaded
        before = self._failed.get(version.name)
        if before is not None and before.stamp == version.stamp and not before.should_retry():
            failures[version.name] = before
            return loaded
        if settled_only and self._seen.get(version.name) != version.stamp:
            return loaded  # perhaps still being written: the next look decides
        try:
            if self._trial is not None:
                if not self._trial.passes(version):
                    return loaded
                self._require_unchanged(version)
            on_run = partial(self._on_run, self.name, version.name)
            model = LoadedModel(self.name, version, self._settings, options, on_run)
        except Exception as error:  # whatever it is, it must not end the server
            failure = LoadFailure.of(error, version.stamp, before)
            failures[version.name] = self._failed[version.name] = failure
            self._tell_failure(version.name, failure)
            return loaded
        self._failed.pop(version.name, None)
        self._observer(self.name, version.name, None)
        event(
            _log,
            "loaded",
            model=self.name,
            version=version.name,
            seconds=round(model.seconds, 3),
            threads=model.settings.session_threads,
            concurrency=model.settings.runs,
            config_ignored=", ".join(options.ignored) or None,
        )
        return model

    def _require_unchanged(self, version: Version) -> None:
        if not self._finder.is_unchanged(version):
            raise SessionError(
                "its files changed during the trial",
                "Write a new version under another name, then rename it.",
                model=version.path,
            )

    def _tell_once(self, failures: dict[str, LoadFailure]) -> None:
        for version, failure in failures.items():
            if self.failures.get(version) != failure:
                self._tell_failure(version, failure)

    def _tell_failure(self, version: str, failure: LoadFailure) -> None:
        self._observer(self.name, version, failure)
        event(
            _log,
            "load failed",
            logging.ERROR,
            model=self.name,
            version=version,
            reason=failure.reason,
            tries=None if failure.delay is None else failure.attempts,
            retry_seconds=failure.delay,
            kept=", ".join(self.serving) or None,
        )
