"""A bounded queue in front of a session, and the threads that run it.

A request waits until a thread is free; at the bound it is refused at once, since a client that is
told to come back is better off than one that waits in a queue that grows. With batching, a thread
that takes a request waits for others of the same kind, up to a latency bound, and runs them as one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from .errors import QueueFullError, RequestError, SchedulerClosedError, TimeoutPassedError

# A run that is expected to be shorter than this is made on the caller's thread. Waking a thread and
# being woken by it costs 0.1 to 0.25 ms, and for so long an event loop may well be busy.
_BRIEF = 5e-4
_SMOOTHING = 0.1  # weight of the latest run in what is expected

Inputs = dict[str, np.ndarray]
Run = Callable[[Sequence[str], Inputs], list[np.ndarray]]


@dataclass(frozen=True)
class Batching:
    """Up to ``max_rows`` rows a run; no request waits longer than ``delay`` seconds for others."""

    max_rows: int
    delay: float


@dataclass(eq=False)
class Job:
    """One request on its way; ``future`` gets the outputs in the order of ``outputs``."""

    inputs: Inputs
    outputs: tuple[str, ...]
    deadline: float
    arrival: float = field(default_factory=time.perf_counter)
    future: Future[list[np.ndarray]] = field(default_factory=Future)
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    @property
    def elements(self) -> int:
        """Of all inputs."""
        return sum(array.size for array in self.inputs.values())

    @property
    def rows(self) -> int:
        """Size of the first dimension, which batching joins."""
        return len(next(iter(self.inputs.values())))

    def fits(self, other: Job) -> bool:
        """Whether both can be rows of one run."""
        return self.outputs == other.outputs and all(
            array.shape[1:] == other.inputs[name].shape[1:] for name, array in self.inputs.items()
        )


class Scheduler:
    """Runs jobs of one model on ``concurrency`` threads, at most ``limit`` of them waiting."""

    def __init__(
        self,
        name: str,
        run: Run,
        *,
        concurrency: int,
        limit: int,
        timeout: float,
        batching: Batching | None = None,
    ):
        self.name = name
        self._run = run
        self._limit = limit
        self._timeout = timeout
        self._batching = batching
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._collecting = False  # one thread at a time fills a batch
        self._closed = False
        self._running = 0
        self._here = 0  # of these, on callers' threads
        self._seconds_per_element: float | None = None
        self._least_seconds = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"fanin-{name}-{number}", daemon=True)
            for number in range(concurrency)
        ]
        self._start()

    def submit(self, inputs: Inputs, outputs: Sequence[str]) -> Job:
        """Queue a request. Raises QueueFullError, or SchedulerClosedError after ``close``."""
        job = Job(inputs, tuple(outputs), time.perf_counter() + self._timeout)
        with self._changed:
            if self._closed:
                raise SchedulerClosedError
            # A free thread takes a job at once, so that a limit of 0 still serves one each.
            idle = len(self._threads) - self._running
            if len(self._jobs) >= self._limit + idle:
                raise QueueFullError(self.name, self._limit)
            self._jobs.append(job)
            self._changed.notify_all() if self._batching else self._changed.notify()
        return job

    def run_if_brief(self, inputs: Inputs, outputs: Sequence[str]) -> Job | None:
        """Run a request at once, on this thread, when a thread is free and it will not take long.

        None means that it has to be submitted. Raises SchedulerClosedError after ``close``.
        """
        job = Job(inputs, tuple(outputs), math.inf)
        with self._changed:
            if self._closed:
                raise SchedulerClosedError
            busy = self._jobs or self._running >= len(self._threads)
            if self._batching or busy or self._expected(job) > _BRIEF:
                return None
            self._running += 1
            self._here += 1
        try:
            self._serve([job])
        finally:
            with self._changed:
                self._running -= 1
                self._here -= 1
                if self._closed:
                    self._changed.notify_all()
        return job

    def abandon(self, job: Job) -> TimeoutPassedError:
        """Take out a job that nobody waits for any more; says in which state it was."""
        with self._changed:
            waited = job in self._jobs
            if waited:
                self._jobs.remove(job)
        job.future.cancel()
        return TimeoutPassedError(self._timeout, "waited in the queue" if waited else "ran")

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._jobs)

    @property
    def running(self) -> int:
        """Jobs, or batches of them, in a run now."""
        return self._running

    def close(self) -> None:
        """Refuse new jobs, run those in the queue, end the threads; returns when all is done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._here)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        """Start all threads, or none: RuntimeError when the system gives no more."""
        threads, self._threads = self._threads, []
        try:
            for thread in threads:
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def _work(self) -> None:
        while (jobs := self._take()) is not None:
            try:
                self._serve([job for job in jobs if self._still_wanted(job)])
            finally:
                jobs = None  # their arrays must not stay until the next ones come
                with self._changed:
                    self._running -= 1

    def _take(self) -> list[Job] | None:
        """Wait for a job, or for a batch of them; None when there is nothing left to do."""
        with self._changed:
            while not self._jobs or self._collecting:
                if self._closed and not self._jobs:
                    return None
                self._changed.wait()
            self._running += 1
            jobs = [self._jobs.popleft()]
            if self._batching:
                self._collect(jobs, self._batching)
            return jobs

    def _collect(self, jobs: list[Job], batching: Batching) -> None:
        """Add jobs of the same kind from the head of the queue: order is kept."""
        first, rows = jobs[0], jobs[0].rows
        end = first.arrival + batching.delay
        self._collecting = True
        try:
            while rows < batching.max_rows:
                if self._jobs:
                    following = self._jobs[0]
                    if not first.fits(following) or rows + following.rows > batching.max_rows:
                        break
                    rows += following.rows
                    jobs.append(self._jobs.popleft())
                    continue
                left = end - time.perf_counter()
                if left <= 0 or self._closed:
                    break
                self._changed.wait(left)
        finally:
            self._collecting = False
            self._changed.notify_all()

    def _still_wanted(self, job: Job) -> bool:
        if not job.future.set_running_or_notify_cancel():
            return False
        if time.perf_counter() > job.deadline:
            job.future.set_exception(TimeoutPassedError(self._timeout, "waited in the queue"))
            return False
        return True

    def _serve(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        start = time.perf_counter()
        results: Sequence[list[np.ndarray] | Exception]
        try:
            results = self._run_together(jobs) if len(jobs) > 1 else [self._run_one(jobs[0])]
        except Exception as error:
            if len(jobs) > 1:  # one of them may be to blame: the others must not suffer
                for job in jobs:
                    self._serve([job])
                return
            results = [error]
        seconds = time.perf_counter() - start
        self._learn(sum(job.elements for job in jobs), seconds)
        for job, result in zip(jobs, results, strict=True):
            job.queue_seconds, job.compute_seconds = start - job.arrival, seconds
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _expected(self, job: Job) -> float:
        if self._seconds_per_element is None:
            return math.inf
        return max(self._least_seconds, self._seconds_per_element * job.elements)

    def _learn(self, elements: int, seconds: float) -> None:
        """Larger inputs take longer, and the smallest ones take some time, too."""
        if not elements:
            return  # what an empty request takes says nothing of others
        each = seconds / elements
        if self._seconds_per_element is None:
            self._seconds_per_element, self._least_seconds = each, seconds
            return
        self._seconds_per_element += _SMOOTHING * (each - self._seconds_per_element)
        self._least_seconds += _SMOOTHING * (seconds - self._least_seconds)

    def _run_one(self, job: Job) -> list[np.ndarray]:
        return self._run(job.outputs, job.inputs)

    def _run_together(self, jobs: list[Job]) -> list[list[np.ndarray]]:
        inputs = {
            name: np.concatenate([job.inputs[name] for job in jobs]) for name in jobs[0].inputs
        }
        outputs = self._run(jobs[0].outputs, inputs)
        total = sum(job.rows for job in jobs)
        for name, array in zip(jobs[0].outputs, outputs, strict=True):
            if not array.ndim or len(array) != total:
                raise RequestError(f"output '{name}' does not have a row for each of the batch's")
        ends = np.cumsum([job.rows for job in jobs])
        return [
            [array[end - job.rows : end] for array in outputs]
            for job, end in zip(jobs, ends, strict=True)
        ]
