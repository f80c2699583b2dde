"""Turns lines that native code writes to stderr, such as ONNX Runtime's log, into log events.

Only newer releases of ONNX Runtime can pass their messages to Python, and not those of their own
threads. So file descriptor 2 becomes an in-memory file that a thread reads, while the log goes to
the original stderr. A pipe would not do: up to onnxruntime 1.20 at least, opening a session holds
the GIL and would block on a full pipe, whose reader waits for the GIL.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .logs import LineHandler, event

_log = logging.getLogger("fanin.serve")

_POLL_SECONDS = 0.2
_MAX_LINE = 1 << 13  # characters; longer lines are split
_PIECE = 1 << 16
_PUNCH, _KEEP_SIZE = 2, 1  # fallocate's FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE

# 2026-01-31 12:00:00.123456789 [W:onnxruntime:name, graph.cc:123 Function] text; the session's name
# may be empty, and on a terminal there are color codes.
_LINE = re.compile(r"\S+ \S+ \[([VIWEF]):onnxruntime:([^,]*), ([^\]]*)\] ?(.*)")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}


@contextmanager
def stderr_as_events() -> Iterator[None]:
    """Log what is written to file descriptor 2 within the ``with`` block.

    If the process crashes, faulthandler's traceback goes to the original stderr.
    """
    stderr = os.dup(2)
    lines = os.memfd_create("fanin-stderr")
    fcntl.fcntl(lines, fcntl.F_SETFL, os.O_APPEND)
    handlers = [handler for handler in _log.handlers if isinstance(handler, LineHandler)]
    reader = _Reader(lines)
    enable_faulthandler = not faulthandler.is_enabled()
    if enable_faulthandler:
        faulthandler.enable(stderr)
    for handler in handlers:
        handler.descriptor = stderr
    os.dup2(lines, 2)
    reader.start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        reader.stop()
        if enable_faulthandler:
            faulthandler.disable()
        for handler in handlers:
            handler.descriptor = 2
        os.close(lines)
        os.close(stderr)


class _Reader(threading.Thread):
    def __init__(self, descriptor: int):
        super().__init__(name="fanin-stderr", daemon=True)
        self._descriptor = descriptor
        self._end = threading.Event()
        self._at = 0
        self._begun = b""

    def run(self) -> None:
        while not self._end.wait(_POLL_SECONDS):
            self._read()

    def stop(self) -> None:
        """Log what is left, then end the thread."""
        self._end.set()
        self.join()
        self._read()
        if self._begun:
            _log_line(self._begun)

    def _read(self) -> None:
        while piece := os.pread(self._descriptor, _PIECE, self._at):
            self._at += len(piece)
            *lines, self._begun = (self._begun + piece).split(b"\n")
            for line in lines:
                _log_line(line)
            if len(self._begun) > _MAX_LINE:
                _log_line(self._begun)
                self._begun = b""
            _free(self._descriptor, self._at)


def _log_line(raw: bytes) -> None:
    text = _COLOR.sub("", raw.decode(errors="backslashreplace")).strip()
    for at in range(0, len(text), _MAX_LINE):
        part = text[at : at + _MAX_LINE]
        found = _LINE.match(part)
        if found is None:
            event(_log, "stderr", logging.WARNING, text=part)
            continue
        level, session, place, message = found.groups()
        event(
            _log,
            "onnxruntime",
            _LEVELS.get(level, logging.INFO),
            text=message,
            place=place,
            session=session or None,
        )


def _free(descriptor: int, size: int) -> None:
    """Free the memory of what has been read; later writes still append at the same offset."""
    ctypes.CDLL(None).fallocate(
        descriptor, _PUNCH | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)
    )
