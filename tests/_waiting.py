"""Waiting for what another thread or process does: no test says how long that takes."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

# Only a test that fails waits for so long, also on a machine that is slow and busy.
PATIENCE = 180.0


def wait_until(
    condition: Callable[[], Result], what: str, seconds: float = PATIENCE, pause: float = 0.01
) -> Result:
    """Ask until the answer is true, and return it; ``what`` says in the failure what never came."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain until {what}"
        time.sleep(pause)
    return found


class LoopClock:
    """The clock of the running event loop, which from now on only the test moves."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        loop.time = lambda: self.now
