"""MLPerf-style online latency of an exported model and its dense baseline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ..engines.ort import open_model
from ..measure.loadgen import SCENARIOS, LoadResult, LoadSettings, Scenario, run_loadgen
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
    """A model and its dense baseline under LoadGen, in this process.

    Each of ``turns`` lets every engine run every scenario for ``seconds``. ``rate`` is of Server's
    queries, per second, the same for all engines; None is what keeps the dense model busy for 0.7
    of the time. ``target_latency`` (seconds) is the 99th percentile that Server's runs must keep to
    be called valid. ``workers`` threads answer Server's queries, each with ``threads`` in its
    session's pool.
    """

    scenarios: tuple[Scenario, ...] = SCENARIOS
    seconds: float = 10.0
    turns: int = 3
    rate: float | None = None
    target_latency: float = 0.1
    workers: int = 1
    threads: int = 1
    seed: int = 0

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


class _Answers:
    """A session, the samples that it is asked for, and its latest answer to each."""

    def __init__(self, session: Any, samples: list[dict[str, np.ndarray]]):
        self._session = session
        self._samples = samples
        self.outputs: dict[int, list[np.ndarray]] = {}

    def __call__(self, index: int) -> None:
        self.outputs[index] = self._session.run(None, self._samples[index])

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
    expected = [sessions["dense"].run(None, sample) for sample in samples]
    rate = spec.rate or _LOAD / median(_run_seconds(sessions["dense"], samples))
    shortest = {name: min(_run_seconds(session, samples)) for name, session in sessions.items()}
    turns: dict[tuple[str, Scenario], list[LoadResult]] = {}
    excluded: dict[tuple[str, Scenario], str] = {}
    for turn in range(spec.turns):
        for number, scenario in enumerate(spec.scenarios):
            if progress:
                done = (turn * len(spec.scenarios) + number) / (spec.turns * len(spec.scenarios))
                progress(f"{scenario}, turn {turn + 1}", done)
            for name, session in sessions.items():
                answers = _Answers(session, samples)
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
    rows = tuple(
        ServingRow(name, scenario, tuple(own), excluded.get((name, scenario)))
        for (name, scenario), own in turns.items()
    )
    title = f"{spec.model.name} under LoadGen, MLPerf-style"
    return recorder.result("serving", title, spec.to_dict(), None, rows, rate=rate)


def _run_seconds(session: Any, samples: list[dict[str, np.ndarray]]) -> list[float]:
    times = []
    for sample in samples[:_PROBES]:
        start = time.perf_counter()
        session.run(None, sample)
        times.append(time.perf_counter() - start)
    return times
