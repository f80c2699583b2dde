"""The timing loop: engines in turn, round after round, checked before and after.

Sources of error that this guards against, each seen in published comparisons: a machine whose speed
drifts (interleaved rounds, ratios within a round), first runs (warm-up until steady), preempted
runs (medians), a coarse timer (turns of a minimum length), thread pools that keep spinning after
their turn (wait until the process is quiet), outputs that are wrong, stale or computed once (the
input changes before every timed run, and outputs are checked before timing, after every turn, and
on inputs never seen before).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from ..engines.child.conditions import Conditions, wait_until_quiet
from ..engines.protocol import Engine, SelfTimedEngine
from .problem import Problem, Sample, first_number, rms_error
from .timing import Measurement, Timing, Warmup

Clock = Callable[[], int]

_CONDITION_SHARE = 0.2


def measure(
    engines: Sequence[Engine],
    problem: Problem,
    timing: Timing,
    *,
    null: Engine | None = None,
    clock: Clock = time.perf_counter_ns,
    settle: Callable[[], None] | None = None,
    prepare_run: Callable[[str], None] | None = None,
) -> tuple[list[Measurement], Measurement]:
    """Time the engines on the problem, interleaved; the null engine takes its turn among them.

    An engine that fails, computes something wrong, or runs with a different number of threads is
    excluded with the reason, and the others go on.

    Args:
        engines: of different names.
        problem: inputs, and their correct outputs.
        timing: how long and how often to measure.
        null: computes nothing of the problem, so only its failure counts.
        clock: nanoseconds.
        settle: called before each turn; by default it waits, with more than one thread, until no
            thread of the process is busy.
        prepare_run: establishes a condition, by default as Conditions does.

    Returns:
        One measurement per engine in the given order, and that of ``null``, which is excluded when
        there is none.

    """
    names = [engine.name for engine in engines] + ([null.name] if null else [])
    if len(set(names)) < len(names):
        raise ValueError(f"engines need different names, got {', '.join(names)}")
    if settle is None:
        settle = wait_until_quiet if timing.threads > 1 else lambda: None
    if prepare_run is None:
        prepare_run = Conditions(timing.threads).prepare
    runners = [_Runner(one, problem, timing, clock, prepare_run, check=True) for one in engines]
    baseline = [_Runner(null, problem, timing, clock, prepare_run, check=False)] if null else []
    turns = baseline + runners
    gc.collect()  # a dead session whose threads end now would distort an engine's thread count
    try:
        problem.load(problem.timed)
        for runner in turns:
            runner.guard(runner.prepare)
        begin = clock()
        for runner in turns:
            settle()
            runner.guard(runner.warm_up)
        phases = ("", *timing.conditions)
        for done, condition in enumerate(phases, 1):
            share = 1 - _CONDITION_SHARE * (len(phases) - done)
            end = (timing.budget or math.inf) * share
            for number in range(timing.rounds):
                if number >= timing.min_rounds and (clock() - begin) / 1e9 > end:
                    break
                # Reversed every other round, so that nobody always follows the same neighbor.
                for runner in turns if number % 2 == 0 else reversed(turns):
                    if condition:
                        runner.guard(partial(runner.run_under, condition))
                    else:
                        settle()
                        runner.guard(partial(runner.turn, number))
        for runner in turns:
            runner.guard(runner.check_after)
    finally:
        for runner in turns:
            runner.engine.close()
    none = Measurement("null", excluded="there is no null session")
    return [runner.result for runner in runners], baseline[0].result if baseline else none


@dataclass
class _Runner:
    """One engine on its way through the rounds; ``last`` is the input of its last run."""

    engine: Engine
    problem: Problem
    timing: Timing
    clock: Clock
    prepare_run: Callable[[str], None]
    check: bool

    def __post_init__(self) -> None:
        # Asked once: the check takes as long as a small layer.
        self.remote = self.engine if isinstance(self.engine, SelfTimedEngine) else None
        self.last = self.problem.timed
        self.result = Measurement(self.engine.name)

    def guard(self, step: Callable[[], None]) -> None:
        """Run the step unless the engine is excluded; exclude it if the step fails."""
        if self.result.excluded is not None:
            return
        try:
            step()
        except Exception as error:  # whatever an engine raises is the reason to exclude it
            self.result.excluded = f"{type(error).__name__}: {error}"

    def prepare(self) -> None:
        result, engine = self.result, self.engine
        result.form, result.precision = engine.form, engine.precision
        start = self.clock()
        engine.prepare(self.problem.inputs)
        result.load_seconds = (self.clock() - start) / 1e9
        result.version, result.threads = engine.version, engine.threads
        result.call_seconds = engine.call_seconds
        if engine.threads != self.timing.threads:
            raise UnequalThreadsError(
                f"runs with {engine.threads} threads, not {self.timing.threads}"
            )
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
        repeats = max(timing.min_repeats, math.ceil(timing.turn / per_run))
        self.result.repeats = 1 if per_run > timing.slow else repeats

    def turn(self, number: int) -> None:
        """Time the runs of a round, whose inputs alternate, and check the last output.

        Which of the two inputs comes last alternates, too, from round to round.
        """
        lead_in = self.timing.lead_in if self.result.repeats != 1 else 0.0
        self.last, other = self.problem.pair(number)
        times = self._timed_runs(self.result.repeats or 0, lead_in, vary=(self.last, other))
        self._error(self.last)
        self.result.rounds_seconds.append(median(times) / 1e9)
        self.result.runs_seconds += [one / 1e9 for one in times]

    def run_under(self, condition: str) -> None:
        """Time one run under a condition."""
        self.last = self.problem.present
        (seconds,) = self._timed_runs(1, condition=condition)
        self.result.conditions.setdefault(condition, []).append(seconds / 1e9)

    def check_after(self) -> None:
        """Check the output of the last timed run, then of a run on inputs never seen before."""
        self.problem.load(self.last)  # other engines have run on other inputs since
        stale = self._error(self.last)
        self.problem.load(self.problem.fresh)
        try:
            self.engine.run()
            fresh = self._error(self.problem.fresh)
            if self.check:
                self.result.rms_error = rms_error(self.engine.output(), self.problem.fresh)
        finally:
            self.problem.load(self.problem.timed)
        if stale is not None and fresh is not None:
            self.result.error_after = max(stale, fresh)

    def _timed_runs(
        self,
        count: int,
        lead_in: float = 0.0,
        *,
        vary: tuple[Sample, Sample] | None = None,
        condition: str = "",
    ) -> list[int]:
        """Return nanoseconds of ``count`` runs, after untimed ones for ``lead_in`` seconds.

        With ``vary`` the two samples alternate as input, the first one in the last run; they differ
        in one number, which is set outside the timed section. ``condition`` is established before
        each run.
        """
        if self.remote:
            numbers = [first_number(sample) for sample in vary or ()]
            times = list(self.remote.time_runs(lead_in, count, numbers, condition))
            if vary:
                self.problem.vary(vary[0])
            return times
        if lead_in:
            self._runs_for(lead_in)
        collecting = gc.isenabled()
        gc.disable()
        times = []
        try:
            for left in range(count - 1, -1, -1):
                if vary:
                    self.problem.vary(vary[left % 2])
                if condition:
                    self.prepare_run(condition)
                times.append(self._timed_run())
        finally:
            if collecting:
                gc.enable()
        return times

    def _timed_run(self) -> int:
        start = self.clock()
        self.engine.run()
        return self.clock() - start

    def _runs_for(self, seconds: float) -> list[int]:
        """Time at least one run, and as many as fit into ``seconds``."""
        end = self.clock() + round(seconds * 1e9)
        times = self._timed_runs(1)
        while (left := end - self.clock()) > 0:
            # Another process is asked for as many as should fit, since every request takes time.
            times += self._timed_runs(max(1, left // max(1, min(times))) if self.remote else 1)
        return times

    def _error(self, sample: Sample) -> float | None:
        if not self.check:
            return None
        return self.problem.error(self.engine.output(), sample, self.engine.precision)


class UnequalThreadsError(Exception):
    """An engine runs with a different number of threads than the comparison."""
