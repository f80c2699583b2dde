"""The bytes of requests and answers that a process holds at a time, and their bound."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .errors import RequestError, TooMuchHeldError


class Budget:
    """Bounds what all leases hold together. Safe to use from any thread."""

    def __init__(self, limit: int, changed: Callable[[int], None] | None = None):
        """Call ``changed``, if any, with the difference whenever the bytes that are held change."""
        self.limit = limit
        self.held = 0
        self.changed = changed
        self._lock = threading.Lock()

    def lease(self) -> Lease:
        """Begin a lease, of nothing yet."""
        return Lease(self)

    def _add(self, size: int) -> bool:
        with self._lock:
            if size > 0 and self.held + size > self.limit:
                return False
            self.held += size
        if self.changed is not None:
            self.changed(size)
        return True


class Lease:
    """What one request, or one connection, holds of the budget."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: Budget):
        self._budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        """Hold more. RequestError: 413 where it could never fit, else 503."""
        if self.try_take(size):
            return
        if self.held + size > self._budget.limit:
            raise RequestError(
                f"the request and its answer take {self.held + size} bytes, more than this server "
                f"holds at a time ({self._budget.limit}): send fewer rows, or binary data",
                413,
            )
        raise TooMuchHeldError

    def try_take(self, size: int) -> bool:
        """Hold more where there is room; tells whether there was."""
        if not self._budget._add(size):
            return False
        self.held += size
        return True

    def resize(self, size: int) -> None:
        """Hold ``size`` bytes from now on: take what lacks, as ``take`` does, or give back."""
        if size > self.held:
            self.take(size - self.held)
        elif size < self.held:
            self._budget._add(size - self.held)
            self.held = size

    def release(self) -> None:
        """Give everything back."""
        self.resize(0)
