"""Transient failures: too little memory, descriptors, threads or disk space, or an absent disk.

The same file may open later. Any other failure is due to the file or the caller.
"""

from __future__ import annotations

import errno
import os

_NUMBERS = (
    *(errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
)
# ONNX Runtime and the op library pass on such failures only as text.
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


def is_transient(error: BaseException) -> bool:
    """Return whether ``error``, or one that caused it, is a transient failure."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, MemoryError):
            return True
        if isinstance(link, OSError) and link.errno in _NUMBERS:
            return True
        if mentions_transient_failure(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def mentions_transient_failure(text: str) -> bool:
    """Return whether an error message describes a transient failure."""
    return any(mark in text for mark in _TEXTS)
