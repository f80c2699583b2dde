"""Keeping a measurement on the same CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pinned(threads: int, *, pin: bool = True) -> Iterator[None]:
    """Keep this thread, and all that it starts, on as many CPUs as there are threads to measure.

    The last ones of the affinity mask, since systems put most of their own work on the first. Does
    nothing where the system has no affinities, where there are not more CPUs than threads, or
    without ``pin``.
    """
    before = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not pin or threads >= len(before):
        yield
        return
    os.sched_setaffinity(0, before[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
