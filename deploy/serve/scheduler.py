"""A bounded queue in front of a session, and the threads that run it.

A request waits until a thread is free. If the queue is full it is refused at once: a client that
can retry is better off than one in an ever-growing queue. With batching, the thread that takes a
request waits, up to a latency bound, for more requests of the same kind and runs them as one.
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

from .errors import QueueFullError, RequestError, RequestTimeoutError, SchedulerClosedError

# Runs expected to be shorter than this many seconds happen on the caller's thread: handing over to
# another thread and back costs 0.1 to 0.25 ms, and the event loop may be busy for that long.
_SHORT_RUN = 5e-4
_SMOOTHING = 0.1  # weight of the latest run in the estimate

Inputs = dict[str, np.ndarray]
Run = Callable[[Sequence[str], Inputs], list[np.ndarray]]


@dataclass(frozen=True)
class Batching:
    """Runs of up to ``max_rows`` rows; no request waits for others longer than ``delay`` s."""

    max_rows: int
    delay: float


@dataclass(eq=False)
class Job:
    """A request in progress; ``future`` gets the outputs in the order of ``outputs``."""

    inputs: Inputs
    outputs: tuple[str, ...]
    deadline: float
    arrival: float = field(default_factory=time.perf_counter)
    future: Future[list[np.ndarray]] = field(default_factory=Future)
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    @property
    def elements(self) -> int:
        """Number of elements of all inputs."""
        return sum(array.size for array in self.inputs.values())

    @property
    def rows(self) -> int:
        """Size of the first dimension, along which requests are batched."""
        return len(next(iter(self.inputs.values())))

    def can_batch_with(self, other: Job) -> bool:
        """Return whether both can be part of one run."""
        return self.outputs == other.outputs and all(
            array.shape[1:] == other.inputs[name].shape[1:] for name, array in self.inputs.items()
        )


class Scheduler:
    """Runs the jobs of one model on ``concurrency`` threads, with at most ``limit`` queued."""

    def __init__(
        self,
        name: str,
        run: Run,
        *,
        concurrency: int,
        limit: int,
        timeout: float,
        batching: Batching | None = None,
        on_run: Callable[[], None] = lambda: None,
    ):
        self.name = name
        self._run = run
        self._on_run = on_run  # called after each successful run
        self._limit = limit
        self._timeout = timeout
        self._batching = batching
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._collecting = False  # one thread at a time fills a batch
        self._closed = False
        self._running = 0
        self._running_inline = 0  # of the running ones, on callers' threads
        self._seconds_per_element: float | None = None
        self._min_seconds = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"fanin-{name}-{number}", daemon=True)
            for number in range(concurrency)
        ]
        self._start()

    def submit(self, inputs: Inputs, outputs: Sequence[str]) -> Job:
        """Queue a request.

        Raises:
            QueueFullError: If the queue is full.
            SchedulerClosedError: After ``close``.

        """
        job = Job(inputs, tuple(outputs), time.perf_counter() + self._timeout)
        with self._changed:
            if self._closed:
                raise SchedulerClosedError
            # Idle threads take a job at once, so a limit of 0 still allows one job each.
            idle = len(self._threads) - self._running
            if len(self._jobs) >= self._limit + idle:
                raise QueueFullError(self.name, self._limit)
            self._jobs.append(job)
            self._changed.notify_all() if self._batching else self._changed.notify()
        return job

    def run_inline_if_short(self, inputs: Inputs, outputs: Sequence[str]) -> Job | None:
        """Run a request on this thread if a thread is free and the run should be short.

        Returns:
            The finished job, or None if the request must be submitted instead.

        Raises:
            SchedulerClosedError: After ``close``.

        """
        job = Job(inputs, tuple(outputs), math.inf)
        with self._changed:
            if self._closed:
                raise SchedulerClosedError
            busy = self._jobs or self._running >= len(self._threads)
            if self._batching or busy or self._expected_seconds(job) > _SHORT_RUN:
                return None
            self._running += 1
            self._running_inline += 1
        try:
            self._serve([job])
        finally:
            with self._changed:
                self._running -= 1
                self._running_inline -= 1
                if self._closed:
                    self._changed.notify_all()
        return job

    def abandon(self, job: Job) -> RequestTimeoutError:
        """Remove a job that nobody waits for; return the error with its last state."""
        with self._changed:
            waited = job in self._jobs
            if waited:
                self._jobs.remove(job)
        job.future.cancel()
        return RequestTimeoutError(self._timeout, "waiting in the queue" if waited else "running")

    @property
    def waiting(self) -> int:
        """Number of queued jobs."""
        return len(self._jobs)

    @property
    def running(self) -> int:
        """Number of jobs, or batches of jobs, running now."""
        return self._running

    def close(self) -> None:
        """Refuse new jobs, run the queued ones, and end the threads; blocks until done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running_inline)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        """Start all threads or none; RuntimeError if the system cannot start more."""
        threads, self._threads = self._threads, []
        try:
            for thread in threads:
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def _work(self) -> None:
        while (jobs := self._next_jobs()) is not None:
            try:
                self._serve([job for job in jobs if self._is_wanted(job)])
            finally:
                jobs = None  # frees their arrays before the next wait
                with self._changed:
                    self._running -= 1

    def _next_jobs(self) -> list[Job] | None:
        """Wait for a job or a batch of jobs; None when closed and empty."""
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
        """Add jobs of the same kind from the head of the queue, in order."""
        first, rows = jobs[0], jobs[0].rows
        end = first.arrival + batching.delay
        self._collecting = True
        try:
            while rows < batching.max_rows:
                if self._jobs:
                    following = self._jobs[0]
                    if (
                        not first.can_batch_with(following)
                        or rows + following.rows > batching.max_rows
                    ):
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

    def _is_wanted(self, job: Job) -> bool:
        if not job.future.set_running_or_notify_cancel():
            return False
        if time.perf_counter() > job.deadline:
            job.future.set_exception(RequestTimeoutError(self._timeout, "waiting in the queue"))
            return False
        return True

    def _serve(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        start = time.perf_counter()
        results: Sequence[list[np.ndarray] | Exception]
        try:
            results = self._run_batch(jobs) if len(jobs) > 1 else [self._run_one(jobs[0])]
            self._on_run()
        except Exception as error:
            if len(jobs) > 1:  # one of them may be to blame: the others must not suffer
                for job in jobs:
                    self._serve([job])
                return
            results = [error]
        seconds = time.perf_counter() - start
        self._update_estimate(sum(job.elements for job in jobs), seconds)
        for job, result in zip(jobs, results, strict=True):
            job.queue_seconds, job.compute_seconds = start - job.arrival, seconds
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _expected_seconds(self, job: Job) -> float:
        if self._seconds_per_element is None:
            return math.inf
        return max(self._min_seconds, self._seconds_per_element * job.elements)

    def _update_estimate(self, elements: int, seconds: float) -> None:
        """Update both estimates: time grows with the input's size, but has a minimum."""
        if not elements:
            return  # the time of an empty request predicts nothing
        each = seconds / elements
        if self._seconds_per_element is None:
            self._seconds_per_element, self._min_seconds = each, seconds
            return
        self._seconds_per_element += _SMOOTHING * (each - self._seconds_per_element)
        self._min_seconds += _SMOOTHING * (seconds - self._min_seconds)

    def _run_one(self, job: Job) -> list[np.ndarray]:
        return self._run(job.outputs, job.inputs)

    def _run_batch(self, jobs: list[Job]) -> list[list[np.ndarray]]:
        inputs = {
            name: np.concatenate([job.inputs[name] for job in jobs]) for name in jobs[0].inputs
        }
        outputs = self._run(jobs[0].outputs, inputs)
        total = sum(job.rows for job in jobs)
        for name, array in zip(jobs[0].outputs, outputs, strict=True):
            if not array.ndim or len(array) != total:
                raise RequestError(f"output '{name}' does not have one row per input row")
        ends = np.cumsum([job.rows for job in jobs])
        return [
            [array[end - job.rows : end] for array in outputs]
            for job, end in zip(jobs, ends, strict=True)
        ]
