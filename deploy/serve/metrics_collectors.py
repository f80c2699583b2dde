"""Metrics that are computed when they are scraped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from . import shared_metrics
from .repository import Repository

MODEL_LABELS = ("model", "version")
# How long the metrics of an unloaded version are kept, in seconds from the first scrape that finds
# it unloaded, so that every scraper sees its last counts.
_RETENTION_SECONDS = 120.0


class UnloadedVersions:
    """Tells which versions were unloaded a while ago."""

    def __init__(self, repository: Repository):
        self._repository = repository
        self._since: dict[tuple[str, str], float] = {}

    def expired(self, known: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return the (model, version) pairs of ``known`` whose retention has ended."""
        now = time.monotonic()
        serving = {(model.name, model.version.name) for model in self._repository.serving()}
        self._since = {key: self._since.get(key, now) for key in set(known) - serving}
        return {key for key, since in self._since.items() if now - since >= _RETENTION_SECONDS}

    def forget(self, removed: Iterable[tuple[str, str]]) -> None:
        """Treat removed pairs as new if they return."""
        for key in removed:
            self._since.pop(key, None)


class SharedCollector:
    """The sums over all workers, without expired versions."""

    def __init__(self, unloaded: UnloadedVersions | None):
        self._unloaded = unloaded

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        found = shared_metrics.collect(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        pairs = {
            pair for metric in found for sample in metric.samples if (pair := _version_of(sample))
        }
        unloaded = self._unloaded.expired(pairs) if self._unloaded else set()
        for metric in found:
            metric.samples = [
                sample for sample in metric.samples if _version_of(sample) not in unloaded
            ]
            yield metric


def _version_of(sample: Sample) -> tuple[str, str] | None:
    version = sample.labels.get("version")
    return None if version is None else (sample.labels["model"], version)


class RepositoryCollector:
    """The state of this process's models."""

    def __init__(self, repository: Repository):
        self._repository = repository

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        waiting = GaugeMetricFamily("fanin_queue_requests", "Queued requests", labels=MODEL_LABELS)
        running = GaugeMetricFamily(
            "fanin_running", "Session runs in progress", labels=MODEL_LABELS
        )
        loaded = GaugeMetricFamily(
            "fanin_model_ready", "1 if the version is served", labels=MODEL_LABELS
        )
        for row in self._repository.index():
            loaded.add_metric((row["name"], row["version"]), float(row["state"] == "READY"))
        for model in self._repository.serving():
            labels = (model.name, model.version.name)
            waiting.add_metric(labels, model.scheduler.waiting)
            running.add_metric(labels, model.scheduler.running)
        yield from (waiting, running, loaded)
