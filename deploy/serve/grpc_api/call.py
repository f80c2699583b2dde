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

    """

    def __init__(self, lease: Lease, trace: Trace | None, deadline: float):
        self.lease = lease
        self.trace = trace
        self.log: dict[str, Any] = {}
        self._deadline = deadline

    def seconds_left(self) -> float:
        """Return the time for queue and session: the server's or, if shorter, the client's."""
        return max(0.001, self._deadline - time.monotonic())
