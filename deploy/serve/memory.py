"""Returns memory to the system when a model is freed; does nothing without glibc."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE = 1 << 20


def map_large_blocks() -> None:
    """Allocate every block of 1 MiB or more of this process in its own memory mapping.

    By default glibc raises this threshold, up to 32 MiB, whenever such a block is freed. Weights
    then lie in the heap among longer-lived blocks, and a server that reloads models never returns
    their memory.
    """
    mallopt = _libc("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)


def release_unused() -> None:
    """Return the free pages of all heaps; a freed session leaves some in each thread's heap."""
    gc.collect()
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


def _libc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
