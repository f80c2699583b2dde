"""Bounds the bytes of requests and responses that a process buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .errors import BudgetExceededError, RequestError


class Budget:
    """Limits the bytes of all leases together. Thread-safe.

    Attributes:
        limit: Most bytes that leases may hold.
        held: Bytes held now.
        on_change: Called with the difference in bytes whenever ``held`` changes.

    """

    def __init__(self, limit: int, on_change: Callable[[int], None] | None = None):
        """Create a budget of ``limit`` bytes."""
        self.limit = limit
        self.held = 0
        self.on_change = on_change
        self._lock = threading.Lock()

    def lease(self) -> Lease:
        """Create a lease that holds nothing yet."""
        return Lease(self)

    def _add(self, size: int) -> bool:
        with self._lock:
            if size > 0 and self.held + size > self.limit:
                return False
            self.held += size
        if self.on_change is not None:
            self.on_change(size)
        return True


class Lease:
    """The share of the budget that one request or connection holds."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: Budget):
        self._budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes.

        Raises:
            RequestError: 413 if they exceed the whole budget, 503 if they exceed what is left.

        """
        if self.try_take(size):
            return
        if self.held + size > self._budget.limit:
            raise RequestError(
                f"the request and its response take {self.held + size} bytes, more than the "
                f"server's buffer of {self._budget.limit}: send fewer rows, or binary data",
                413,
            )
        raise BudgetExceededError

    def try_take(self, size: int) -> bool:
        """Hold ``size`` more bytes if the budget allows it; return whether it did."""
        if not self._budget._add(size):
            return False
        self.held += size
        return True

    def resize(self, size: int) -> None:
        """Change the lease to ``size`` bytes; raises as ``take`` does if it grows."""
        if size > self.held:
            self.take(size - self.held)
        elif size < self.held:
            self._budget._add(size - self.held)
            self.held = size

    def release(self) -> None:
        """Release the whole lease."""
        self.resize(0)
