"""The protocol's statistics extension, read from the same counters as /metrics.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
With several workers the counters, and so these numbers, are sums over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import Metric

# Phase of the statistics extension → phase in the metrics.
_PHASES = {
    "success": "success",
    "fail": "fail",
    "queue": "queue",
    "compute_input": "input",
    "compute_infer": "compute",
    "compute_output": "output",
}


def read_statistics(
    families: Iterable[Metric], versions: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Return the statistics of model versions.

    Args:
        families: The server's metrics, at least those of ``Metrics.statistics_families``.
        versions: (model, version) pairs, in the order of the result.

    Returns:
        For each version its ``model_stats`` entry. Counts are of requests, ``inference_count`` of
        rows, durations in nanoseconds since the server started. Requests that did not reach the
        session count as failures.

    """
    values: dict[tuple[str, str, str], float] = {}
    for family in families:
        for sample in family.samples:
            labels = sample.labels
            if "version" in labels:
                name = sample.name.removeprefix("fanin_") + labels.get("phase", "")
                values[labels["model"], labels["version"], name] = sample.value
    return [_entry(model, version, values) for model, version in versions]


def _entry(model: str, version: str, values: dict[tuple[str, str, str], float]) -> dict[str, Any]:
    def of(name: str) -> float:
        return values.get((model, version, name), 0.0)

    durations = {
        name: {
            "count": round(of(f"phase_seconds_count{phase}")),
            "ns": round(of(f"phase_seconds_sum{phase}") * 1e9),
        }
        for name, phase in _PHASES.items()
    }
    none = {"count": 0, "ns": 0}  # there is no response cache
    return {
        "name": model,
        "version": version,
        "last_inference": round(of("last_inference_timestamp_seconds") * 1e3),
        "inference_count": round(of("inferences_total")),
        "execution_count": round(of("executions_total")),
        "inference_stats": {**durations, "cache_hit": none, "cache_miss": none},
        "batch_stats": [],
        "memory_usage": [],
    }
