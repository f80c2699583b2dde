"""Prometheus metrics of the server. Needs prometheus_client.

Label values are names of configured models and versions on disk, never text from a request: a
client cannot make the number of time series grow.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from . import shared_metrics
from .budget import Budget
from .failures import Failure
from .logs import event
from .repository import Repository

_log = logging.getLogger("fanin.serve")

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Seconds: a small layer takes microseconds, a large network tenths.
_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
_MODEL = ("model", "version")
# Of refusals: the limit on connections, that on bytes held, a head or an answer over its time or
# size, and what is not HTTP.
REASONS = ("connections", "memory", "head", "answer", "malformed")
# Of a model, a version and a status: answers, and seconds in all, in the queue, in the session.
_Children = tuple[Counter, Histogram, Histogram, Histogram]
# Seconds for which the series of a version that no longer serves are still shown, from the first
# scrape that finds it gone: so every scraper sees its last counts.
_SHOWN = 120.0

# With several workers, prometheus_client counts in mapped files, KIND_PID.db of these kinds. They
# double when they are full. The series of a version take at most 20 KiB of one of them.
_KINDS = ("counter", "gauge_livesum", "histogram")
_FILE = 1 << 16


class Metrics:
    """The server's metrics, in a registry of their own.

    With several workers (PROMETHEUS_MULTIPROC_DIR is set), ``text`` sums over all of them; raises
    OSError when the disk has no room for their files.
    """

    def __init__(self) -> None:
        if _is_shared():
            shared_metrics.prepare(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        _reserve()
        self._full = False
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests", "Infer requests answered, by HTTP status", "status"
        )
        self.loads = Counter(
            "fanin_model_loads",
            "Attempts to load a model, by result (loaded, failed, or postponed to another try)",
            ("model", "result"),
            registry=self.registry,
        )
        self.request_seconds = self._histogram("request", "From the request's head to its answer")
        self.queue_seconds = self._histogram("queue", "Waiting for a thread")
        self.compute_seconds = self._histogram("compute", "In the session")
        self.in_flight = self._sum("in_flight_requests", "Infer requests that are being served")
        self.connections = self._sum("connections", "Open connections")
        self.held_bytes = self._sum("buffered_bytes", "Bytes of requests and answers held now")
        refusals = Counter(
            "fanin_refusals",
            "Connections and requests that were refused or cut off, by what was exceeded",
            ("reason",),
            registry=self.registry,
        )
        # All of them now: a full disk may have no room for new ones.
        self._refusals = {reason: refusals.labels(reason) for reason in REASONS}
        self._children: dict[tuple[str, str, int], _Children] = {}
        self._gone: _Gone | None = None

    def watch(self, repository: Repository) -> None:
        """Show the repository's state on each scrape; of this process alone."""
        self.registry.register(_RepositoryCollector(repository))
        self._gone = _Gone(repository)

    def watch_held(self, budget: Budget) -> None:
        """Show what the budget holds: read at a scrape, or counted where another worker scrapes."""
        if _is_shared():
            budget.changed = self.held_bytes.inc
        else:
            self.held_bytes.set_function(lambda: budget.held)

    def answered(
        self,
        model: str,
        version: str,
        status: int,
        seconds: float,
        split: tuple[float, float] | None = None,
    ) -> None:
        """Count an answer; ``split`` is the time in the queue and in the session.

        The first of its kind is not counted while the disk has no room for its series.
        """
        key = (model, version, status)
        children = self._children.get(key)
        if children is None:
            if not self._has_room():
                return
            labels = (model, version)
            children = self._children[key] = (
                self.requests.labels(*labels, str(status)),
                self.request_seconds.labels(*labels),
                self.queue_seconds.labels(*labels),
                self.compute_seconds.labels(*labels),
            )
        children[0].inc()
        children[1].observe(seconds)
        if split:
            children[2].observe(split[0])
            children[3].observe(split[1])

    def refused(self, reason: str) -> None:
        """Count a connection or request that was refused for one of REASONS."""
        self._refusals[reason].inc()

    def load_attempted(self, model: str, _version: str, failure: Failure | None) -> None:
        """Count an attempt to load a model."""
        result = "loaded"
        if failure is not None:
            result = "failed" if failure.delay is None else "postponed"
        self.loads.labels(model, result).inc()

    def forget_gone(self) -> None:
        """Remove the series of versions that are gone; on the thread that calls ``answered``.

        With several workers there is nothing to do: their files only grow, ``text`` leaves it out.
        """
        if self._gone is None or _is_shared():
            return
        gone = self._gone.among({key[:2] for key in self._children})
        for key in [key for key in self._children if key[:2] in gone]:
            del self._children[key]
            self.requests.remove(*key[:2], str(key[2]))
        for labels in gone:
            for family in (self.request_seconds, self.queue_seconds, self.compute_seconds):
                family.remove(*labels)
        self._gone.forget(gone)

    def text(self) -> bytes:
        """Write the exposition format."""
        if not _is_shared():
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        registry.register(_SharedCollector(self._gone))
        return generate_latest(registry)

    def _has_room(self) -> bool:
        try:
            _reserve()
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
        return Counter(f"fanin_{name}", text, (*_MODEL, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"fanin_{name}_seconds", text, _MODEL, registry=self.registry, buckets=_BUCKETS
        )


def _is_shared() -> bool:
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


def _reserve() -> None:
    """Take the disk space that the shared files will need next; OSError when there is none.

    They are mapped and have holes: on a full disk, counting would end the process.
    prometheus_client maps a file as large as it finds it, and doubles it when it is used up: with
    twice the bytes in use, rounded up, half as many again are safe.
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


class _Gone:
    """Tells which versions have not served for a while."""

    def __init__(self, repository: Repository):
        self._repository = repository
        self._since: dict[tuple[str, str], float] = {}

    def among(self, known: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Pick those of ``known``, pairs of model and version, whose time to be shown is over."""
        now = time.monotonic()
        serving = {(model.name, model.version.name) for model in self._repository.serving()}
        self._since = {key: self._since.get(key, now) for key in set(known) - serving}
        return {key for key, since in self._since.items() if now - since >= _SHOWN}

    def forget(self, removed: Iterable[tuple[str, str]]) -> None:
        """Take removed series for new ones, should they come again."""
        for key in removed:
            self._since.pop(key, None)


class _SharedCollector:
    """The sums over all workers, without the versions that are gone."""

    def __init__(self, gone: _Gone | None):
        self._gone = gone

    def collect(self) -> Iterator[Metric]:
        found = shared_metrics.collect(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        pairs = {pair for metric in found for sample in metric.samples if (pair := _pair(sample))}
        gone = self._gone.among(pairs) if self._gone else set()
        for metric in found:
            metric.samples = [sample for sample in metric.samples if _pair(sample) not in gone]
            yield metric


def _pair(sample: Sample) -> tuple[str, str] | None:
    version = sample.labels.get("version")
    return None if version is None else (sample.labels["model"], version)


class _RepositoryCollector:
    def __init__(self, repository: Repository):
        self._repository = repository

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("fanin_queue_requests", "Requests that wait", labels=_MODEL)
        running = GaugeMetricFamily("fanin_running", "Runs of a session now", labels=_MODEL)
        loaded = GaugeMetricFamily("fanin_model_ready", "1 if the version serves", labels=_MODEL)
        for row in self._repository.index():
            loaded.add_metric((row["name"], row["version"]), float(row["state"] == "READY"))
        for model in self._repository.serving():
            labels = (model.name, model.version.name)
            waiting.add_metric(labels, model.scheduler.waiting)
            running.add_metric(labels, model.scheduler.running)
        yield from (waiting, running, loaded)
