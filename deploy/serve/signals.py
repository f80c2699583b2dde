"""Signals that stop a server: SIGTERM and SIGHUP drain it, SIGINT and SIGQUIT skip the delay.

A closing terminal sends SIGHUP, and Ctrl-backslash SIGQUIT. No signal reloads models, which follow
their files.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

DRAINING = (signal.SIGTERM, signal.SIGHUP)
_OF_TERMINALS = (signal.SIGHUP, signal.SIGQUIT)


def on_stop(handler: Callable[[int, FrameType | None], object]) -> None:
    """Handle all of them, except terminal signals that nohup or a shell has set to be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, *_OF_TERMINALS):
        if number not in _OF_TERMINALS or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def name_of(number: int) -> str:
    """Return the name of a signal, including real-time signals without one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
