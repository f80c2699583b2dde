"""Versions that failed to load: the reason, and when to retry."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from ..errors import SessionError
from ..transient import is_transient
from .versions import FileStamps

# Seconds until a transient failure is retried, doubled each time: a failing load takes time and
# memory from the models being served.
_FIRST_DELAY, _MAX_DELAY = 1.0, 300.0


@dataclass(frozen=True)
class LoadFailure:
    """A version that failed to load.

    Attributes:
        reason: Why it failed.
        stamp: The version's files at that time.
        attempts: Failed attempts with these files.
        delay: Seconds between the failure and the next attempt with the same files; None if only
            changed files can help.
        retry_at: When that is, by ``time.monotonic()``.

    """

    reason: str
    stamp: FileStamps = ()
    attempts: int = 1
    delay: float | None = None
    retry_at: float = math.inf

    @classmethod
    def of(cls, error: Exception, stamp: FileStamps, before: LoadFailure | None) -> LoadFailure:
        """Record ``error``; ``before`` is the version's previous failure, if any."""
        reason = (
            str(error) if isinstance(error, SessionError) else f"{type(error).__name__}: {error}"
        )
        if not is_transient(error):
            return cls(reason, stamp)
        again = before is not None and before.delay is not None and before.stamp == stamp
        attempts = before.attempts + 1 if before is not None and again else 1
        delay = min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** min(attempts - 1, 30))
        return cls(reason, stamp, attempts, delay, time.monotonic() + delay)

    def should_retry(self) -> bool:
        """Return whether it is time to try the same files again."""
        return time.monotonic() >= self.retry_at

    def __str__(self) -> str:
        if self.delay is None:
            return self.reason
        left = max(0, math.ceil(self.retry_at - time.monotonic()))
        return f"{self.reason} (failed {self.attempts} times; next attempt in {left} s)"
