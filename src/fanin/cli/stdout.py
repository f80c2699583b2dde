"""Standard output: a command whose result does not get there has failed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from .common import FAILED, LostOutputError, complain


def occupy_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr, so that no other file takes its number.

    What a native library prints would otherwise go into a model or a connection. Python's own
    ``sys.stdout`` stays None.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


@contextmanager
def checked_stdout(needed: bool) -> Iterator[None]:
    """Run a command; exit with status 1 if what it prints on stdout is lost.

    Args:
        needed: Whether a command without a stdout is refused before it begins.

    """
    if needed and sys.stdout is None:
        complain("standard output is closed; to do without what is printed, add >/dev/null")
        sys.exit(FAILED)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _Stdout(
            sys.stdout.detach(),
            encoding=sys.stdout.encoding,
            errors="replace",  # a locale without UTF-8 lacks arrows and lines
            line_buffering=sys.stdout.line_buffering,
            write_through=sys.stdout.write_through,
        )
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except LostOutputError as error:
        _discard()
        complain(str(error))
        sys.exit(FAILED)
    except BrokenPipeError:  # the reader has stopped, as `head` does
        _discard()
        sys.exit(FAILED)


class _Stdout(TextIOWrapper):
    """Tells its own errors from those of other files."""

    def write(self, text: str) -> int:
        with _naming_stdout():
            return super().write(text)

    def flush(self) -> None:
        with _naming_stdout():
            super().flush()


@contextmanager
def _naming_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LostOutputError(f"cannot write to standard output: {error.strerror}") from error


def _discard() -> None:
    """Drop what is still buffered, which Python would try to write at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
