"""Giving memory back to the system after a model was freed."""

from __future__ import annotations

import ctypes
import gc
import sys


def release_unused() -> None:
    """Return free pages of the C heap; does nothing where the C library cannot.

    A freed session leaves its pages in the arenas of the threads that made it. Without this, a
    server that reloads a model every minute keeps what the worst of its sessions took.
    """
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
