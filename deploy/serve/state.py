"""State shared by all routes of a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from . import shared_folder
from .budget import Budget
from .metrics import Metrics
from .repository import Repository
from .settings import ServeSettings
from .trial import Trial

if TYPE_CHECKING:
    from .otel import Tracer

_T = TypeVar("_T")


class ServerState:
    """Settings, models, metrics, and the thread that watches files for changes."""

    def __init__(self, settings: ServeSettings):
        self.settings = settings
        self.metrics = Metrics()
        self._trial = None
        if settings.trial_timeout:
            self._trial = Trial(
                settings.trial_timeout,
                settings.session_threads,
                shared_folder.current(),
                settings.custom_op_libraries,
            )
        self.tracer: Tracer | None = None
        if settings.otel:
            from .otel import Tracer  # needs an extra of its own

            self.tracer = Tracer.from_environment()
        self.repository = Repository(
            settings, self.metrics.count_load, self._trial, self.metrics.count_run
        )
        self.metrics.watch(self.repository)
        self.budget = Budget(settings.buffered)
        self.metrics.watch_budget(self.budget)
        self.draining = False
        # What else serves requests and must end before the models are freed.
        self.others: list[asyncio.Task[None]] = []
        # A separate pool, so that loads waiting for each other do not block scrapes.
        self.loads = ThreadPoolExecutor(4, thread_name_prefix="fanin-load")
        # For large JSON. Only two threads, since each delays the event loop a little.
        self.large = ThreadPoolExecutor(2, thread_name_prefix="fanin-large")
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def open(self) -> None:
        """Load the models and start watching their files; raises SessionError."""
        self.repository.open()
        if self.settings.poll:
            self._watcher = threading.Thread(target=self._watch, name="fanin-watch", daemon=True)
            self._watcher.start()

    async def call(self, function: Callable[[], _T], small: bool) -> _T:
        """Call ``function`` at once if its work is ``small``, otherwise on another thread."""
        if small:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self.large, function)

    async def wait_for_others(self) -> None:
        """Wait until what else serves requests has ended."""
        await asyncio.gather(*self.others)

    def close(self) -> None:
        """Stop watching, and finish what is queued."""
        self._stop.set()
        if self._trial is not None:
            self._trial.stop()
        if self._watcher is not None:
            self._watcher.join()
        self.loads.shutdown(cancel_futures=True)
        self.large.shutdown(cancel_futures=True)
        self.repository.close()
        if self.tracer is not None:
            self.tracer.close()

    def _watch(self) -> None:
        while not self._stop.wait(self.settings.poll):
            self.repository.refresh()
