"""The timing loop: engines in turn, round after round, checked before and after.

Sources of error that this guards against, each seen in published comparisons: a machine whose speed
drifts (interleaved rounds, ratios within a round), first runs (warm-up until steady), a preempted
run (medians), a timer too coarse (turns of a minimum length), pools that go on spinning after their
turn (wait until the process is quiet), outputs that are wrong, stale or computed once (checked
against float64 with two different inputs).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..cpus import MAX_THREADS
from .engine import Engine, SelfTimedEngine
from .problem import Problem, Sample

Clock = Callable[[], int]

Progress = Callable[[str, float], None]
"""Is told what is measured next, and the share done."""


@dataclass(frozen=True)
class Timing:
    """How long and how often to measure. Times are in seconds.

    A *turn* is one engine's part of a round: ``lead_in`` of untimed runs, which bring its weights
    back into the caches, then as many timed runs as last ``turn`` together, at least
    ``min_repeats``. The figure of the turn is the median of its runs.

    *Warm-up* runs an engine in windows of half a turn, and ends when the medians of the last
    ``steady_windows`` windows lie within ``steady_tolerance`` of each other, or after
    ``max_warmup``; the report says which.
    """

    threads: int = 1
    rounds: int = 21
    turn: float = 0.02
    min_repeats: int = 3
    lead_in: float = 0.002
    max_warmup: float = 2.0
    steady_windows: int = 3
    steady_tolerance: float = 0.05

    def __post_init__(self):
        for name in ("threads", "rounds", "min_repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.threads > MAX_THREADS:
            raise ValueError(f"threads is {self.threads}; it must be at most {MAX_THREADS}")
        for name in ("turn", "max_warmup", "steady_tolerance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.steady_windows < 2:
            raise ValueError(f"steady_windows is {self.steady_windows}; it must be at least 2")


@dataclass(frozen=True)
class Warmup:
    """The warm-up of one engine: its length, its runs, and whether it ended steady."""

    seconds: float
    runs: int
    steady: bool


@dataclass
class Measurement:
    """What was measured of one engine; ``excluded`` is the reason when its times do not count."""

    name: str
    version: str = ""
    form: str = ""
    threads: int = 0
    load_seconds: float | None = None
    first_run_seconds: float | None = None
    warmup: Warmup | None = None
    repeats: int | None = None
    call_seconds: float | None = None
    rounds_seconds: list[float] = field(default_factory=list)
    error_before: float | None = None
    error_after: float | None = None
    excluded: str | None = None


def measure(
    engines: Sequence[Engine],
    problem: Problem,
    timing: Timing,
    *,
    null: Engine | None = None,
    clock: Clock = time.perf_counter_ns,
    settle: Callable[[], None] | None = None,
) -> tuple[list[Measurement], Measurement | None]:
    """Time the engines on the problem, interleaved; the null engine takes its turn among them.

    Returns one measurement per engine in the given order, and that of ``null``. An engine that
    fails, computes something wrong, or runs with another number of threads is left out with the
    reason, and the others go on. ``null`` computes nothing of the problem: only its failure counts.
    ``settle`` is called before each turn; by default it waits, with more than one thread, until no
    thread of the process works any more.
    """
    names = [engine.name for engine in engines] + ([null.name] if null else [])
    if len(set(names)) < len(names):
        raise ValueError(f"engines need different names, got {', '.join(names)}")
    if settle is None:
        settle = wait_until_quiet if timing.threads > 1 else lambda: None
    runners = [_Runner(engine, problem, timing, clock, check=True) for engine in engines]
    baseline = _Runner(null, problem, timing, clock, check=False) if null else None
    turns = [baseline, *runners] if baseline else runners
    try:
        problem.load(problem.timed)
        for runner in turns:
            runner.guard(runner.prepare)
        for runner in turns:
            settle()
            runner.guard(runner.warm_up)
        for number in range(timing.rounds):
            # Reversed every other round, so that nobody always follows the same neighbour.
            for runner in turns if number % 2 == 0 else reversed(turns):
                settle()
                runner.guard(runner.turn)
        for runner in turns:
            runner.guard(runner.check_after)
    finally:
        for runner in turns:
            runner.engine.close()
    return [runner.result for runner in runners], baseline.result if baseline else None


def wait_until_quiet(limit: float = 0.5, step: float = 0.005) -> None:
    """Sleep until this process uses hardly any CPU, at most ``limit`` seconds.

    ONNX Runtime's pool threads spin for tens of milliseconds after a run; on a machine with as many
    threads as CPUs they would take a CPU from the next engine.
    """
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        start, used = time.perf_counter(), time.process_time()
        time.sleep(step)
        if time.process_time() - used < 0.2 * (time.perf_counter() - start):
            return


class _Runner:
    """One engine on its way through the rounds."""

    def __init__(
        self, engine: Engine, problem: Problem, timing: Timing, clock: Clock, *, check: bool
    ):
        self.engine = engine
        self.problem = problem
        self.timing = timing
        self.clock = clock
        self.check = check
        self.result = Measurement(engine.name)

    def guard(self, step: Callable[[], None]) -> None:
        """Take the step unless the engine is out already; it is out when the step fails."""
        if self.result.excluded is not None:
            return
        try:
            step()
        except Exception as error:  # whatever an engine raises is its reason to be left out
            self.result.excluded = f"{type(error).__name__}: {error}"

    def prepare(self) -> None:
        result, engine = self.result, self.engine
        result.form = engine.form
        start = self.clock()
        engine.prepare(self.problem.inputs)
        result.load_seconds = (self.clock() - start) / 1e9
        result.version, result.threads = engine.version, engine.threads
        result.call_seconds = engine.call_seconds
        if engine.threads != self.timing.threads:
            raise UnfairError(f"runs with {engine.threads} threads, not {self.timing.threads}")
        result.first_run_seconds = self._timed_runs(1)[0] / 1e9
        result.error_before = self._error(self.problem.timed)

    def warm_up(self) -> None:
        timing = self.timing
        medians: list[float] = []
        runs, steady, begin = 0, False, self.clock()
        while not steady and (self.clock() - begin) / 1e9 < timing.max_warmup:
            times = self._runs_for(timing.turn / 2)
            runs += len(times)
            medians = [*medians, median(times)][-timing.steady_windows :]
            steady = len(medians) == timing.steady_windows and max(medians) <= (
                1 + timing.steady_tolerance
            ) * min(medians)
        self.result.warmup = Warmup((self.clock() - begin) / 1e9, runs, steady)
        per_run = max(median(medians), 1) / 1e9
        self.result.repeats = max(timing.min_repeats, math.ceil(timing.turn / per_run))

    def turn(self) -> None:
        times = self._timed_runs(self.result.repeats or 0, self.timing.lead_in)
        self.result.rounds_seconds.append(median(times) / 1e9)

    def check_after(self) -> None:
        """Check the output of the last timed run, then of a run on inputs never seen before."""
        stale = self._error(self.problem.timed)
        self.problem.load(self.problem.fresh)
        try:
            self.engine.run()
            fresh = self._error(self.problem.fresh)
        finally:
            self.problem.load(self.problem.timed)
        if stale is not None and fresh is not None:
            self.result.error_after = max(stale, fresh)

    def _timed_runs(self, count: int, lead_in: float = 0.0) -> list[int]:
        """Time ``count`` runs, after untimed ones for ``lead_in`` seconds; nanoseconds."""
        if isinstance(self.engine, SelfTimedEngine):
            return list(self.engine.time_runs(lead_in, count))
        if lead_in:
            self._runs_for(lead_in)
        collecting = gc.isenabled()
        gc.disable()
        try:
            return [self._timed_run() for _ in range(count)]
        finally:
            if collecting:
                gc.enable()

    def _timed_run(self) -> int:
        start = self.clock()
        self.engine.run()
        return self.clock() - start

    def _runs_for(self, seconds: float) -> list[int]:
        """Time at least one run, and as many as fit into ``seconds``."""
        end = self.clock() + round(seconds * 1e9)
        times = self._timed_runs(1)
        while (left := end - self.clock()) > 0:
            # Another process is asked for as many as should fit, since every question takes time.
            remote = isinstance(self.engine, SelfTimedEngine)
            times += self._timed_runs(max(1, left // max(1, min(times))) if remote else 1)
        return times

    def _error(self, sample: Sample) -> float | None:
        return self.problem.error(self.engine.output(), sample) if self.check else None


class UnfairError(Exception):
    """An engine runs under other conditions than those of the comparison."""
