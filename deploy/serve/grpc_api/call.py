"""What a method may know of its call."""

from __future__ import annotations

import time
from typing import Any

from ..budget import Lease
from ..tracing import Trace


class Call:
    """A call in progress.

    Attributes:
        lease: The bytes that it holds.
        trace: The trace that it belongs to, if any.
        log: Fields for the access log.
        body: The serialized message, until a method takes it.

    """

    def __init__(self, lease: Lease, trace: Trace | None, timeout: float, deadline: float):
        self.lease = lease
        self.trace = trace
        self.log: dict[str, Any] = {}
        self.body = b""
        self._timeout = timeout
        self._deadline = deadline

    def seconds_left(self) -> float:
        """Return the time for queue and session: the server's or, if shorter, the client's."""
        return max(0.001, min(self._timeout, self._deadline - time.monotonic()))

    def take_body(self) -> bytes:
        """Return the message, which the call then no longer holds."""
        body, self.body = self.body, b""
        return body
