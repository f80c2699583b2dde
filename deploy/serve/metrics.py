"""Prometheus metrics of the server. Needs prometheus_client.

Label values are names of configured models and versions on disk, never text from a request: a
client cannot make the number of time series grow.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Summary,
    generate_latest,
)
from prometheus_client.core import Metric

from . import shared_metrics
from .budget import Budget
from .load_failure import LoadFailure
from .logs import event
from .metrics_collectors import (
    MODEL_LABELS,
    RepositoryCollector,
    SharedCollector,
    UnloadedVersions,
)
from .repository import Repository

_log = logging.getLogger("fanin.serve")

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Seconds: a small layer takes microseconds, a large network tenths of a second.
_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
# Reasons of refusals: connection limit, buffer budget, a request head too large or too late, a
# response not read in time, malformed HTTP.
REASONS = ("connections", "memory", "head", "answer", "malformed")
PHASES = ("success", "fail", "queue", "input", "compute", "output")
# With several workers, prometheus_client counts in memory-mapped files named KIND_PID.db, which
# double when they are full. The metrics of a version take at most 20 KiB of one file.
_KINDS = ("counter", "gauge_livesum", "gauge_livemax", "histogram", "summary")
_FILE = 1 << 16


@dataclass
class Phases:
    """Seconds of a request's phases, and the rows that it had, once its model has run."""

    input: float = 0.0
    queue: float = 0.0
    compute: float = 0.0
    output: float = 0.0
    rows: int = 0


class _Children:
    """The metrics of a model version; those of a status are created with its first response."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str]):
        self.responses: dict[int, Counter] = {}
        self.request = metrics.request_seconds.labels(*labels)
        self.queue = metrics.queue_seconds.labels(*labels)
        self.compute = metrics.compute_seconds.labels(*labels)
        self.rows = metrics.rows.labels(*labels)
        self.runs = metrics.runs.labels(*labels)
        self.last = metrics.last_inference.labels(*labels)
        self.phases = {phase: metrics.phases.labels(*labels, phase) for phase in PHASES}

    def observe(self, status: int, seconds: float, phases: Phases | None) -> None:
        self.responses[status].inc()
        self.request.observe(seconds)
        if phases is not None:
            self.queue.observe(phases.queue)
            self.compute.observe(phases.compute)
        if status != 200:
            self.phases["fail"].observe(seconds)
            return
        self.phases["success"].observe(seconds)
        if phases is not None:
            for name in ("queue", "input", "compute", "output"):
                self.phases[name].observe(getattr(phases, name))
            self.rows.inc(phases.rows)
            self.last.set(time.time())


class Metrics:
    """The server's metrics, in their own registry.

    With several workers (PROMETHEUS_MULTIPROC_DIR is set), ``text`` sums over all of them.

    Raises:
        OSError: If the disk has no room for the shared files.

    """

    def __init__(self) -> None:
        if _is_shared():
            shared_metrics.prepare(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        _reserve_disk_space()
        self._full = False
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests", "Infer requests answered, by HTTP status", "status"
        )
        self.loads = Counter(
            "fanin_model_loads",
            "Attempts to load a model, by result (loaded, failed, or postponed to a later attempt)",
            ("model", "result"),
            registry=self.registry,
        )
        self.request_seconds = self._histogram("request", "From the request's head to its response")
        self.queue_seconds = self._histogram("queue", "Waiting for a thread")
        self.compute_seconds = self._histogram("compute", "In the session")
        self.phases = Summary(
            "fanin_phase_seconds",
            "Phases of infer requests: success and fail are whole requests, the others parts of "
            "successful ones",
            (*MODEL_LABELS, "phase"),
            registry=self.registry,
        )
        self.rows = self._counter("inferences", "Rows of successful infer requests")
        self.runs = self._counter("executions", "Successful runs of the session")
        self.last_inference = Gauge(
            "fanin_last_inference_timestamp_seconds",
            "When the last successful infer request ended, in seconds since 1970",
            MODEL_LABELS,
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self.in_flight = self._sum("in_flight_requests", "Infer requests being served")
        self.connections = self._sum("connections", "Open connections")
        self.held_bytes = self._sum("buffered_bytes", "Bytes of buffered requests and responses")
        refusals = Counter(
            "fanin_refusals",
            "Connections and requests refused or cut off, by the limit that was exceeded",
            ("reason",),
            registry=self.registry,
        )
        # Created now, because a full disk may have no room for them later.
        self._refusals = {reason: refusals.labels(reason) for reason in REASONS}
        self._children: dict[tuple[str, str], _Children] = {}
        self._unloaded: UnloadedVersions | None = None

    def watch(self, repository: Repository) -> None:
        """Show the state of this process's repository in each scrape."""
        self.registry.register(RepositoryCollector(repository))
        self._unloaded = UnloadedVersions(repository)

    def watch_budget(self, budget: Budget) -> None:
        """Show the bytes held: read when scraped, or counted if another worker may be scraped."""
        if _is_shared():
            budget.on_change = self.held_bytes.inc
        else:
            self.held_bytes.set_function(lambda: budget.held)

    def count_response(
        self,
        model: str,
        version: str,
        status: int,
        seconds: float,
        phases: Phases | None = None,
    ) -> None:
        """Count a response.

        The first response with a new (model, version, status) is not counted while the disk has
        no room for its metrics.

        Args:
            model: Name of the model.
            version: Name of the version.
            status: HTTP status, or the one that stands for a status of gRPC.
            seconds: From the request's head to the response.
            phases: Of the request, if the model was run.

        """
        children = self._of(model, version)
        if children is None:
            return
        if status not in children.responses:
            if not self._reserve_space():
                return
            children.responses[status] = self.requests.labels(model, version, str(status))
        children.observe(status, seconds, phases)

    def count_run(self, model: str, version: str) -> None:
        """Count a successful run of a session, of one request or of a batch."""
        children = self._of(model, version)
        if children is not None:
            children.runs.inc()

    def _of(self, model: str, version: str) -> _Children | None:
        children = self._children.get((model, version))
        if children is None and self._reserve_space():
            # Runs are counted on other threads.
            fresh = _Children(self, (model, version))
            children = self._children.setdefault((model, version), fresh)
        return children

    def count_refusal(self, reason: str) -> None:
        """Count a refused connection or request; ``reason`` is one of REASONS."""
        self._refusals[reason].inc()

    def count_load(self, model: str, _version: str, failure: LoadFailure | None) -> None:
        """Count an attempt to load a model."""
        result = "loaded"
        if failure is not None:
            result = "failed" if failure.delay is None else "postponed"
        self.loads.labels(model, result).inc()

    def remove_unloaded(self) -> None:
        """Remove metrics of unloaded versions; call on the thread that calls ``count_response``.

        With several workers this does nothing: shared files only grow, and ``text`` omits these.
        """
        if self._unloaded is None or _is_shared():
            return
        unloaded = self._unloaded.expired(self._children)
        for labels in unloaded:
            children = self._children.pop(labels)
            for status in children.responses:
                self.requests.remove(*labels, str(status))
            for phase in PHASES:
                self.phases.remove(*labels, phase)
            for family in (self.request_seconds, self.queue_seconds, self.compute_seconds):
                family.remove(*labels)
            for single in (self.rows, self.runs, self.last_inference):
                single.remove(*labels)
        self._unloaded.forget(unloaded)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's exposition format."""
        if not _is_shared():
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        registry.register(SharedCollector(self._unloaded))
        return generate_latest(registry)

    def statistics_families(self) -> list[Metric]:
        """Return the metrics with each version's counts; with several workers their sums."""
        if _is_shared():
            return list(SharedCollector(None).collect())
        families = (self.phases, self.rows, self.runs, self.last_inference)
        return [metric for family in families for metric in family.collect()]

    def _reserve_space(self) -> bool:
        try:
            _reserve_disk_space()
        except OSError as error:
            if not self._full:
                event(_log, "metrics are incomplete", logging.ERROR, reason=str(error))
            self._full = True
            return False
        self._full = False
        return True

    def _sum(self, name: str, text: str) -> Gauge:
        return Gauge(f"fanin_{name}", text, registry=self.registry, multiprocess_mode="livesum")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fanin_{name}", text, (*MODEL_LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"fanin_{name}_seconds", text, MODEL_LABELS, registry=self.registry, buckets=_BUCKETS
        )


def _is_shared() -> bool:
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


def _reserve_disk_space() -> None:
    """Allocate the disk space that the shared files need next; OSError if there is none.

    They are memory-mapped and sparse, so counting on a full disk would kill the process.
    prometheus_client maps a file at the size it finds and doubles it when it is full. Twice the
    bytes in use, rounded up to a power of two, leaves half of them as a margin.
    """
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return
    for kind in _KINDS:
        with Path(folder, f"{kind}_{os.getpid()}.db").open("a+b") as file:
            file.seek(0)
            used = int.from_bytes(file.read(4), sys.byteorder)
            size = _FILE
            while size < 2 * used:
                size *= 2
            os.posix_fallocate(file.fileno(), 0, size)
