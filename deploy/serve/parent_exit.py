"""Ends a process when its parent exits, for whatever reason."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.h


class Lifeline:
    """The read end of a pipe whose only write end belongs to the parent.

    Nothing is ever written. When the parent exits, for whatever reason, the kernel closes its end;
    an exit before ``watch`` is noticed as well. (While ONNX Runtime up to 1.20 opens a session, it
    holds the GIL and delays this.)
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call ``on_end`` on a separate thread once the parent has exited."""
        threading.Thread(
            target=self._wait, args=(on_end,), name="fanin-lifeline", daemon=True
        ).start()

    def _wait(self, on_end: Callable[[], None]) -> None:
        while os.read(self._descriptor, 1):
            pass
        on_end()


def signal_on_parent_exit(number: int) -> None:
    """Make the kernel send this process a signal when its parent exits (Linux only).

    No signal is sent if the parent has already exited: compare ``os.getppid()`` afterwards. The
    parent counts as exited when the thread that started this process ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)
