"""Versions that did not load: why, and when the next try is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from ..errors import SessionError
from ..shortage import is_shortage
from .sources import Stamp

# Seconds to the next try of what failed for want of memory, descriptors or the like: doubled with
# each, since a load that fails takes time and memory from the models that serve.
_FIRST, _LONGEST = 1.0, 300.0


@dataclass(frozen=True)
class Failure:
    """A version that did not load while its files had this stamp.

    ``delay`` is the time in seconds to the next try of the same files, None when only other files
    can help; ``due`` is its end by time.monotonic().
    """

    reason: str
    stamp: Stamp = ()
    tries: int = 1
    delay: float | None = None
    due: float = math.inf

    @classmethod
    def of(cls, error: Exception, stamp: Stamp, before: Failure | None) -> Failure:
        """Record ``error``; ``before`` is the failure that the version had until now."""
        reason = (
            str(error) if isinstance(error, SessionError) else f"{type(error).__name__}: {error}"
        )
        if not is_shortage(error):
            return cls(reason, stamp)
        again = before is not None and before.delay is not None and before.stamp == stamp
        tries = before.tries + 1 if before is not None and again else 1
        delay = min(_LONGEST, _FIRST * 2.0 ** min(tries - 1, 30))
        return cls(reason, stamp, tries, delay, time.monotonic() + delay)

    def is_due(self) -> bool:
        """Whether the same files are to be tried again now."""
        return time.monotonic() >= self.due

    def __str__(self) -> str:
        if self.delay is None:
            return self.reason
        left = max(0, math.ceil(self.due - time.monotonic()))
        return f"{self.reason} (failed {self.tries} times; the next try is in {left} s)"
