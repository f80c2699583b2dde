"""The signals that stop a server: SIGTERM and SIGHUP drain it, SIGINT and SIGQUIT skip the delay.

A terminal sends SIGHUP as it closes, and SIGQUIT for Ctrl and backslash. No signal reloads: models
follow their files.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

DRAINING = (signal.SIGTERM, signal.SIGHUP)
_OF_TERMINALS = (signal.SIGHUP, signal.SIGQUIT)


def on_stop(handler: Callable[[int, FrameType | None], object]) -> None:
    """Handle all of them, but for those of a terminal that nohup or a shell has set to ignore."""
    for number in (signal.SIGTERM, signal.SIGINT, *_OF_TERMINALS):
        if number not in _OF_TERMINALS or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def name_of(number: int) -> str:
    """Name a signal, also one of the real-time ones between the first and the last."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
