"""Prometheus metrics of the server. Needs prometheus_client.

Label values are names of configured models and versions on disk, never text from a request: a
client cannot make the number of time series grow.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
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
from prometheus_client.multiprocess import MultiProcessCollector

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

# With several workers, prometheus_client counts in mapped files, KIND_PID.db of these kinds. They
# double when they are full. The series of a version take at most 20 KiB of one of them.
_KINDS = ("counter", "gauge_livesum", "histogram")
_FILE = 1 << 16


class Metrics:
    """The server's metrics, in a registry of their own.

    With several workers (PROMETHEUS_MULTIPROC_DIR is set), ``text`` sums over all of them; raises
    OSError when the disk has no room for their files.
    """

    def __init__(self):
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
        self.in_flight = Gauge(
            "fanin_in_flight_requests",
            "Infer requests that are being served",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._children: dict[tuple, tuple] = {}

    def watch(self, repository: Repository) -> None:
        """Show the repository's state on each scrape; of this process alone."""
        self.registry.register(_RepositoryCollector(repository))

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

    def load_attempted(self, model: str, _version: str, failure: Failure | None) -> None:
        """Count an attempt to load a model."""
        result = "loaded"
        if failure is not None:
            result = "failed" if failure.delay is None else "postponed"
        self.loads.labels(model, result).inc()

    def text(self) -> bytes:
        """Write the exposition format."""
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self.registry)

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

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fanin_{name}", text, (*_MODEL, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"fanin_{name}_seconds", text, _MODEL, registry=self.registry, buckets=_BUCKETS
        )


def _reserve() -> None:
    """Take the disk space that the shared files will need next; OSError when there is none.

    They are mapped and have holes: on a full disk, counting would end the process.
    prometheus_client maps a file as large as it finds it, and doubles it when it is used up: with
    twice the bytes in use, rounded up, half as many again are safe.
    """
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    for kind in _KINDS if folder else ():
        with Path(folder, f"{kind}_{os.getpid()}.db").open("a+b") as file:
            file.seek(0)
            used = int.from_bytes(file.read(4), sys.byteorder)
            size = _FILE
            while size < 2 * used:
                size *= 2
            os.posix_fallocate(file.fileno(), 0, size)


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
