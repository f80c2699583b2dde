"""One model of the server: its versions on disk, in memory, and those that failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import SessionError
from .config_pbtxt import OptionsFile
from .load_failure import LoadFailure
from .loaded_model import LoadedModel
from .logs import event
from .memory import release_unused
from .model_options import CONFIG_FILE, ModelOptions
from .settings import ModelSource, ServeSettings
from .trial import Trial
from .versions import FileStamps, Version, VersionFinder

_log = logging.getLogger("fanin.serve")

# Called after each attempt to load with the model, the version, and the failure or None.
Observer = Callable[[str, str, LoadFailure | None], None]


class ModelEntry:
    """One model.

    Attributes:
        name: Its name.
        wanted: Whether it should be served: false once it was unloaded on request.
        serving: The versions that are served, newest first; replaced as a whole, so readers need no
            lock.
        failures: Why versions that should be served are not.

    """

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
        self._vanished = False  # at the last look
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
            subject = f"version {version} of model" if version else "model"
            return SessionError(f"{subject} '{self.name}' does not load: {failure.reason}", "")
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
        existing, found = found, options.selected(found)
        self._vanished = self._vanished and not existing
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
        if not chosen:
            # Nothing on disk can be served: keep what is loaded, and tell why in the index.
            if not found and (existing or self.serving):
                if not existing and settled_only and not self._vanished:
                    self._vanished = True  # perhaps being replaced: the next look decides
                    return self.serving
                failures = dict.fromkeys(self.serving or [""], _nothing_selected(existing))
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


def _nothing_selected(existing: list[Version]) -> LoadFailure:
    if not existing:
        return LoadFailure("its files are missing or inaccessible")
    names = ", ".join(version.name for version in existing[:5])
    return LoadFailure(
        f"the version_policy of its {CONFIG_FILE} selects none of its versions ({names})"
    )
