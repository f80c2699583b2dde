"""Lines that other code writes to stderr, such as ONNX Runtime's own, as events of the log.

Only newer releases of ONNX Runtime can hand their messages to Python, and not those of its
threads. So standard error becomes a file in memory, which a thread reads; the log goes on to where
it went before. No pipe: up to onnxruntime 1.20 at least, a session is opened with the interpreter's
lock held, and would wait at a full pipe for a reader that waits for the lock.
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

_LOOK = 0.2  # seconds between two looks
_LONGEST = 1 << 13  # characters of a line; what is longer becomes several
_PIECE = 1 << 16
_PUNCH, _KEEP_SIZE = 2, 1  # of fallocate, in Linux' falloc.h

# 2026-01-31 12:00:00.123456789 [W:onnxruntime:name, graph.cc:123 Function] text; with a session's
# name or without, colours around it on a terminal.
_LINE = re.compile(r"\S+ \S+ \[([VIWEF]):onnxruntime:([^,]*), ([^\]]*)\] ?(.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}


@contextmanager
def native_lines_as_events() -> Iterator[None]:
    """Log what is written to file descriptor 2, until the end of the ``with`` block.

    What a crash of the process prints goes to the true stderr, as Python's own account of it.
    """
    stderr = os.dup(2)
    lines = os.memfd_create("fanin-stderr")
    fcntl.fcntl(lines, fcntl.F_SETFL, os.O_APPEND)
    handlers = [handler for handler in _log.handlers if isinstance(handler, LineHandler)]
    reader = _Reader(lines)
    tells_of_crashes = not faulthandler.is_enabled()
    if tells_of_crashes:
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
        if tells_of_crashes:
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
        while not self._end.wait(_LOOK):
            self._read()

    def stop(self) -> None:
        """Log what is left, and end."""
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
            if len(self._begun) > _LONGEST:
                _log_line(self._begun)
                self._begun = b""
            _free(self._descriptor, self._at)


def _log_line(raw: bytes) -> None:
    text = _COLOUR.sub("", raw.decode(errors="backslashreplace")).strip()
    for at in range(0, len(text), _LONGEST):
        part = text[at : at + _LONGEST]
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
    """Give back the memory of what was read; whoever appends does not notice."""
    ctypes.CDLL(None).fallocate(
        descriptor, _PUNCH | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)
    )
