"""Failures of the moment: memory, descriptors, threads or disk space ran out, or a disk was away.

The same file may open a little later. Everything else is the file's own fault, or the caller's.
"""

from __future__ import annotations

import errno
import os

_NUMBERS = (
    *(errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
)
# ONNX Runtime and the op library hand on what happened as text alone.
_TEXTS = (
    *(
        "MemoryError",
        "bad_alloc",
        "Failed to allocate memory",
        "out of memory",
        "not enough memory",
    ),
    *("pthread_create failed", "can't start new thread"),
    *map(os.strerror, _NUMBERS),
)


def is_shortage(error: BaseException) -> bool:
    """Whether ``error``, or one that it came from, is a failure of the moment."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, MemoryError):
            return True
        if isinstance(link, OSError) and link.errno in _NUMBERS:
            return True
        if tells_of_shortage(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def tells_of_shortage(text: str) -> bool:
    """Whether the text of an error tells of a failure of the moment."""
    return any(mark in text for mark in _TEXTS)
