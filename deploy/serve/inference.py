"""One infer request, whatever protocol brought it: its model, its phases, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .errors import (
    BudgetExceededError,
    InsufficientMemoryError,
    RequestError,
    SchedulerClosedError,
)
from .loaded_model import LoadedModel
from .metrics import Phases
from .protocol import InferRequest
from .scheduler import Job

if TYPE_CHECKING:
    from .state import ServerState
    from .tracing import Trace

_T = TypeVar("_T")

# Stands for a call that its client has ended; the number is nginx's.
CLIENT_GONE = 499

# Most characters of a request id in the log.
_LOGGED = 200


class InferCall:
    """Counts, logs and traces an infer request; a context manager around all that serves it.

    Attributes:
        model: The model version, once found; the one that ran, once run.
        log: Fields for the access log.

    """

    def __init__(self, state: ServerState, protocol: str, log: dict[str, Any], trace: Trace | None):
        self._state = state
        self._start = time.perf_counter()
        self._phases = Phases()
        self._split = False
        self._version: str | None = None
        self.model: LoadedModel | None = None
        self.log = log
        self._span = None
        if state.tracer is not None and trace is not None:
            self._span = state.tracer.start(trace, protocol)

    def __enter__(self) -> InferCall:
        """Begin to count the request as in flight."""
        self._state.metrics.in_flight.inc()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Count the outcome; running out of memory becomes a RequestError."""
        state = self._state
        state.metrics.in_flight.dec()
        status = _status(error, state.draining)
        if isinstance(error, BudgetExceededError):
            state.metrics.count_refusal("memory")
        if self.model is not None:
            name, version = self.model.name, self.model.version.name
            self.log["model"], self.log["version"] = name, version
            seconds = time.perf_counter() - self._start
            phases = self._phases if self._split else None
            state.metrics.count_response(name, version, status, seconds, phases)
        if self._span is not None:
            self._span.end(status, self.log)
        if isinstance(error, MemoryError):
            raise InsufficientMemoryError from None

    @property
    def version(self) -> str:
        """Name of the version that was found or, once it ran, of the one that ran."""
        assert self.model is not None
        return self.model.version.name

    def find(self, model: str, version: str | None) -> LoadedModel:
        """Look up the model; RequestError (404) if it is not served."""
        self._version = version
        self.model = self._state.repository.find(model, version)
        return self.model

    async def decode(self, read: Callable[[], _T], small: bool) -> _T:
        """Read the request's message; ``small`` ones on this thread."""
        start = time.perf_counter()
        result = await self._state.call(read, small)
        self._phases.input += time.perf_counter() - start
        return result

    async def run(self, parsed: InferRequest, timeout: float) -> list[np.ndarray]:
        """Run the request within ``timeout`` seconds.

        If the model is replaced meanwhile, its successor runs it; ``model`` is then that one.
        """
        assert self.model is not None
        self.log["id"] = parsed.id and parsed.id[:_LOGGED]
        rows = len(next(iter(parsed.inputs.values()))) if self.model.signature.batched else 1
        job = await self._run(parsed, timeout)
        self._phases.queue, self._phases.compute = job.queue_seconds, job.compute_seconds
        self._phases.rows, self._split = rows, True
        self.log["queue_ms"] = round(job.queue_seconds * 1e3, 3)
        self.log["compute_ms"] = round(job.compute_seconds * 1e3, 3)
        if self._span is not None:
            self._span.ran(job.arrival, job.queue_seconds, job.compute_seconds)
        return job.future.result()

    async def encode(self, write: Callable[[], _T], small: bool) -> _T:
        """Write the response; ``small`` ones on this thread."""
        start = time.perf_counter()
        result = await self._state.call(write, small)
        self._phases.output = time.perf_counter() - start
        return result

    async def _run(self, parsed: InferRequest, timeout: float) -> Job:
        assert self.model is not None
        outputs: Sequence[str] = [name for name, _ in parsed.outputs]
        while True:
            scheduler = self.model.scheduler
            try:
                job = scheduler.run_inline_if_short(parsed.inputs, outputs)
                if job is not None:
                    return job
                job = scheduler.submit(parsed.inputs, outputs)
            except SchedulerClosedError:
                signature = self.model.signature
                self.model = self._state.repository.find(self.model.name, self._version)
                if self.model.signature != signature:
                    raise RequestError(
                        "the model was replaced by one with different inputs or outputs; try again",
                        409,
                    ) from None
                continue
            try:
                await asyncio.wait_for(asyncio.wrap_future(job.future), timeout)
            except TimeoutError:
                raise scheduler.abandon(job) from None
            except asyncio.CancelledError:  # nobody waits for the answer any more
                scheduler.abandon(job)
                raise
            return job


def _status(error: BaseException | None, draining: bool) -> int:
    """Return the HTTP status that stands for the outcome in metrics and traces."""
    if error is None:
        return 200
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, asyncio.CancelledError):
        return 503 if draining else CLIENT_GONE
    return 503 if isinstance(error, MemoryError) else 500
