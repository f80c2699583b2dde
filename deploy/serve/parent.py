"""Ends a process whose parent is gone, whatever ended that one."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.h


class Lifeline:
    """A pipe between a process and its parent, which says nothing and ends with the parent.

    The parent alone has the write end, so that the kernel closes it whatever the parent dies of.
    An end that came before the first look is found as well, on every system. While ONNX Runtime up
    to 1.20 opens a session it keeps all of Python waiting, this included.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call ``on_end`` on a thread of its own once the parent is gone."""
        threading.Thread(
            target=self._wait, args=(on_end,), name="fanin-lifeline", daemon=True
        ).start()

    def _wait(self, on_end: Callable[[], None]) -> None:
        while os.read(self._descriptor, 1):
            pass
        on_end()


def signal_at_parents_end(number: int) -> None:
    """Let the kernel send a signal to this process when its parent ends. Linux alone does.

    A parent that had ended before sends none: compare os.getppid() with its number afterwards.
    It counts as ended when the thread that started this process has.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)
