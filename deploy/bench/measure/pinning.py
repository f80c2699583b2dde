"""Pins a measurement to a few CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...runtime import load_onnxruntime


@contextmanager
def pinned(threads: int, *, pin: bool = True) -> Iterator[None]:
    """Pin this thread, and those that it starts, to as many CPUs as there are threads to measure.

    They are the last ones of the affinity mask, since systems run most of their own work on the
    first. Does nothing where the system has no affinities, where there are no more CPUs than
    threads, or without ``pin``.

    Raises:
        SessionError: ONNX Runtime is missing or too old.

    """
    before = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not pin or threads >= len(before):
        yield
        return
    # ONNX Runtime 1.32 multiplies without AMX in a process that has one CPU when it is imported:
    # 3072 -> 768 in int8 at batch 256 then takes 2.2 ms instead of 0.75.
    load_onnxruntime()
    os.sched_setaffinity(0, before[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
