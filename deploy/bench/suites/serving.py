"""MLPerf-style online latency of an exported model and its dense baseline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..engines.ort import open_model
from ..measure.loadgen import SCENARIOS, LoadResult, LoadSettings, Scenario, run_loadgen
from ..measure.server import Client, Server, message
from ..measure.timing import Progress
from ..results.result import Recorder, Result
from .model_pair import ModelPairSpec, input_shapes
from .specs import check_choices

_SAMPLES = 64
_TOLERANCE = 1e-4
_PROBES = 20
_LOAD = 0.7


@dataclass(frozen=True)
class BenchServingSpec(ModelPairSpec):
    """A model and its dense baseline under LoadGen, in sessions of this process.

    Each of ``turns`` lets every engine run every scenario for ``seconds``. ``rate`` is of Server's
    queries, per second, the same for all engines; None is what keeps the dense model busy for 0.7
    of the time. ``target_latency`` (seconds) is the 99th percentile that Server's runs must keep to
    be called valid. ``workers`` threads answer Server's queries, each with ``threads`` in its
    session's pool. With ``server`` both are asked through ``fanin serve``, too, whose sessions have
    as many threads and run as many requests at a time.
    """

    scenarios: tuple[Scenario, ...] = SCENARIOS
    seconds: float = 10.0
    turns: int = 3
    rate: float | None = None
    target_latency: float = 0.1
    workers: int = 1
    threads: int = 1
    seed: int = 0
    server: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("scenarios", self.scenarios, SCENARIOS)
        for name in ("turns", "workers", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("seconds", "target_latency", "rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0")


@dataclass(frozen=True)
class ServingRow:
    """One engine in one scenario, over its turns; ``excluded`` says why it does not count."""

    engine: str
    scenario: Scenario
    turns: tuple[LoadResult, ...]
    excluded: str | None = None

    def latency(self, percentile: str) -> float:
        """Median over the turns, in seconds."""
        return median(turn.latencies[percentile] for turn in self.turns)


ServingResult = Result[ServingRow]
"""A finished measurement. Its ``facts``: ``rate``, that of Server's queries."""

_Ask = Callable[[int], list[np.ndarray]]
"""Computes the outputs of the sample of that number."""


def server_overhead(result: ServingResult) -> float | None:
    """Return what a request takes over the condensed session alone: seconds of the medians.

    None without a server, or without SingleStream.
    """
    alone = [row for row in result.cases if row.scenario == "SingleStream" and not row.excluded]
    medians = {row.engine: row.latency("p50") for row in alone}
    if not {"condensed", "condensed-server"} <= set(medians):
        return None
    return medians["condensed-server"] - medians["condensed"]


class _Answers:
    """The latest answer to each sample."""

    def __init__(self, ask: _Ask):
        self._ask = ask
        self.outputs: dict[int, list[np.ndarray]] = {}

    def __call__(self, index: int) -> None:
        self.outputs[index] = self._ask(index)

    def mistake(self, expected: list[list[np.ndarray]]) -> str | None:
        """Compare the answers; None when all are right."""
        for index, outputs in self.outputs.items():
            for got, want in zip(outputs, expected[index], strict=True):
                error = np.abs(got.astype(np.float64) - want).max() / (np.abs(want).max() or 1.0)
                if not error <= _TOLERANCE:
                    return f"its answer to sample {index} is wrong by {error:.1e}"
        return None


def bench_serving(spec: BenchServingSpec, *, progress: Progress | None = None) -> ServingResult:
    """Run the scenarios, the engines in turn.

    Raises RequirementError without LoadGen, SessionError when a file does not open.
    """
    spec.require_baseline()
    recorder = Recorder()
    sessions = {
        "dense": open_model(spec.dense_path, spec.threads, library=False),
        "condensed": open_model(spec.model, spec.threads, library=True),
    }
    shapes = input_shapes(
        spec.model, spec.dense_path, (1,), sessions["condensed"], sessions["dense"]
    )
    rng = np.random.default_rng(spec.seed)
    samples = [
        {
            name: rng.standard_normal([1 if size is None else size for size in shape], np.float32)
            for name, shape in shapes.items()
        }
        for _ in range(_SAMPLES)
    ]
    engines = {name: _of_session(session, samples) for name, session in sessions.items()}
    expected = [engines["dense"](index) for index in range(_SAMPLES)]
    rate = spec.rate or _LOAD / median(_run_seconds(engines["dense"]))
    with ExitStack() as servers:
        if spec.server:
            for name, path in (("dense", spec.dense_path), ("condensed", spec.model)):
                engines[f"{name}-server"] = _of_server(spec, path, samples, servers)
        rows = _measure(spec, engines, expected, rate, progress)
    title = f"{spec.model.name} under LoadGen, MLPerf-style"
    return recorder.result("serving", title, spec.to_dict(), None, rows, rate=rate)


def _measure(
    spec: BenchServingSpec,
    engines: dict[str, _Ask],
    expected: list[list[np.ndarray]],
    rate: float,
    progress: Progress | None,
) -> tuple[ServingRow, ...]:
    shortest = {name: min(_run_seconds(ask)) for name, ask in engines.items()}
    turns: dict[tuple[str, Scenario], list[LoadResult]] = {}
    excluded: dict[tuple[str, Scenario], str] = {}
    for turn in range(spec.turns):
        for number, scenario in enumerate(spec.scenarios):
            if progress:
                done = (turn * len(spec.scenarios) + number) / (spec.turns * len(spec.scenarios))
                progress(f"{scenario}, turn {turn + 1}", done)
            for name, ask in engines.items():
                answers = _Answers(ask)
                settings = LoadSettings(
                    scenario,
                    spec.seconds,
                    rate,
                    spec.target_latency,
                    shortest[name] / 2,
                    spec.workers,
                )
                result = run_loadgen(answers, _SAMPLES, settings, spec.seed + turn)
                turns.setdefault((name, scenario), []).append(result)
                mistake = answers.mistake(expected)
                if mistake:
                    excluded[name, scenario] = mistake
    return tuple(
        ServingRow(name, scenario, tuple(own), excluded.get((name, scenario)))
        for (name, scenario), own in turns.items()
    )


def _of_session(session: Any, samples: list[dict[str, np.ndarray]]) -> _Ask:
    def ask(index: int) -> list[np.ndarray]:
        outputs: list[np.ndarray] = session.run(None, samples[index])
        return outputs

    return ask


def _of_server(
    spec: BenchServingSpec, path: Path, samples: list[dict[str, np.ndarray]], servers: ExitStack
) -> _Ask:
    """Start a server of the model; every thread that asks has a connection of its own."""
    options = ["--threads", str(spec.threads), "--concurrency", str(spec.workers)]
    server = servers.enter_context(Server(f"m={path}", *options))
    messages = [message("m", sample) for sample in samples]
    own = threading.local()

    def ask(index: int) -> list[np.ndarray]:
        if not hasattr(own, "client"):
            own.client = Client(server.port)
        client: Client = own.client
        return client.ask(messages[index]).outputs()

    return ask


def _run_seconds(ask: _Ask) -> list[float]:
    times = []
    for index in range(_PROBES):
        start = time.perf_counter()
        ask(index)
        times.append(time.perf_counter() - start)
    return times
