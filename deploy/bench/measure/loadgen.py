"""MLCommons' LoadGen over a session in this process.

LoadGen decides when queries come and judges their latencies; the numbers are MLPerf-style, and no
MLPerf results: those need its rules, its models and its review.
"""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..requirements import require

Scenario = Literal["SingleStream", "Server"]
SCENARIOS: tuple[Scenario, ...] = ("SingleStream", "Server")
"""One query after another; queries of a Poisson process at a given rate."""

_PERCENTILES = (50, 90, 99)
_MARK = ":::MLLOG "


@dataclass(frozen=True)
class LoadSettings:
    """What LoadGen is asked for. ``rate`` is of Server's queries, per second; times in seconds.

    ``shortest_latency`` bounds how many queries SingleStream may need to fill its time.
    """

    scenario: Scenario
    seconds: float
    rate: float
    target_latency: float
    shortest_latency: float
    workers: int


@dataclass(frozen=True)
class LoadResult:
    """What LoadGen's log says. ``latencies`` are seconds by percentile, p50, p90 and p99."""

    queries: int
    latencies: dict[str, float]
    mean_latency: float
    rate: float
    valid: bool


def run_loadgen(
    answer: Callable[[int], None], samples: int, settings: LoadSettings, seed: int
) -> LoadResult:
    """Let LoadGen ask for samples 0 to ``samples`` - 1; ``answer`` computes one of them.

    Raises RequirementError without LoadGen, and whatever ``answer`` raised.
    """
    loadgen = require("mlperf_loadgen", "it makes and judges the load", "loadgen")
    server = _Answerer(loadgen, answer, settings.workers if settings.scenario == "Server" else 0)
    with tempfile.TemporaryDirectory(prefix="fanin-loadgen-") as folder:
        sut = loadgen.ConstructSUT(server.issue, lambda: None)
        library = loadgen.ConstructQSL(samples, samples, _nothing, _nothing)
        try:
            test, log = _test_settings(loadgen, settings, seed), _log_settings(loadgen, folder)
            loadgen.StartTestWithLogSettings(sut, library, test, log)
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(sut)
            server.close()
        if server.failure is not None:
            raise server.failure
        return read_log(Path(folder) / "mlperf_log_detail.txt", settings)


def read_log(path: Path, settings: LoadSettings) -> LoadResult:
    """Read LoadGen's detailed log."""
    found: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        if line.startswith(_MARK):
            entry = json.loads(line.removeprefix(_MARK))
            found[entry["key"]] = entry["value"]
    rates = ("result_completed_samples_per_sec", "result_qps_without_loadgen_overhead")
    return LoadResult(
        queries=int(found["result_query_count"]),
        latencies={
            f"p{share}": found[f"result_{share}.00_percentile_latency_ns"] / 1e9
            for share in _PERCENTILES
        },
        mean_latency=found["result_mean_latency_ns"] / 1e9,
        rate=float(found[rates[settings.scenario == "SingleStream"]]),
        valid=found["result_validity"] == "VALID",
    )


class _Answerer:
    """Answers in LoadGen's thread, or with ``workers`` in a pool of threads."""

    def __init__(self, loadgen: Any, answer: Callable[[int], None], workers: int):
        self._loadgen = loadgen
        self._answer = answer
        self.failure: BaseException | None = None
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def issue(self, queries: Sequence[Any]) -> None:
        """Run the queries that LoadGen issues."""
        for query in queries:
            if self._threads:
                self._queue.put((query.id, query.index))
            else:
                self._complete(query.id, query.index)

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._complete(*item)

    def _complete(self, identity: int, index: int) -> None:
        try:
            if self.failure is None:
                self._answer(index)
        except BaseException as error:  # it would end the process from within LoadGen's thread
            self.failure = error
        response = self._loadgen.QuerySampleResponse(identity, 0, 0)
        self._loadgen.QuerySamplesComplete([response])


def _test_settings(loadgen: Any, settings: LoadSettings, seed: int) -> Any:
    made = loadgen.TestSettings()
    made.scenario = getattr(loadgen.TestScenario, settings.scenario)
    made.mode = loadgen.TestMode.PerformanceOnly
    made.min_duration_ms = round(1000 * settings.seconds)
    made.max_duration_ms = 2 * made.min_duration_ms
    made.min_query_count = 1
    made.server_target_qps = settings.rate
    made.server_target_latency_ns = round(1e9 * settings.target_latency)
    made.server_target_latency_percentile = 0.99
    made.single_stream_expected_latency_ns = max(1, round(1e9 * settings.shortest_latency))
    seeds = np.random.default_rng(seed).integers(1 << 62, size=3).tolist()
    made.qsl_rng_seed, made.sample_index_rng_seed, made.schedule_rng_seed = seeds
    return made


def _log_settings(loadgen: Any, folder: str) -> Any:
    output = loadgen.LogOutputSettings()
    output.outdir = folder
    output.copy_summary_to_stdout = False
    made = loadgen.LogSettings()
    made.log_output = output
    made.enable_trace = False
    return made


def _nothing(_: Any) -> None:
    """Load or unload nothing: samples are in memory all the time."""
