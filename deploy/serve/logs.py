"""Log lines for machines (one JSON object each) or for people."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any


def event(logger: logging.Logger, name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with fields; those that are None are left out."""
    if logger.isEnabledFor(level):
        kept = {key: value for key, value in fields.items() if value is not None}
        logger.log(level, name, extra={"fields": kept})


def configure_logging(log_format: str) -> None:
    """Send the server's and uvicorn's log to stderr.

    A log that cannot be written (a full disk, a closed pipe) is lost; the server goes on.
    """
    handler = LineHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    for name in ("fanin.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
    # Its lines on start and stop say nothing that the server's own do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class LineHandler(logging.Handler):
    """Writes lines to stderr and loses those that it cannot write.

    A buffer would keep the rest of a line that a full disk cut off, and glue it to a later one.
    """

    _cut = False
    descriptor = 2

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line, or as several with an exception."""
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        if self._cut:
            line = b"\n" + line
        done = 0
        try:
            while done < len(line):
                done += os.write(self.descriptor, line[done:])
            self._cut = False
        except OSError:
            self._cut = self._cut or done > 0


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        words = [_time(record), record.levelname, _printable(record.getMessage())]
        words += [f"{key}={_one_word(value)}" for key, value in fields.items()]
        lines = [" ".join(words)]
        if record.exc_info:
            # Indented: a line of an error's message cannot pass for one of the log.
            traceback = self.formatException(record.exc_info).split("\n")
            lines += [f"  {_printable(line)}" for line in traceback]
        return "\n".join(lines)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _one_word(value: Any) -> str:
    """Quote what has spaces, quotes, or characters that a terminal or a reader of lines obeys."""
    text = str(value)
    if text and text.isprintable() and not set(text) & set(' "'):
        return text
    return _printable(json.dumps(text, ensure_ascii=False))


def _printable(text: str) -> str:
    """Escape all but printable characters: control codes of both sets, U+2028, directions, …."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else json.dumps(char)[1:-1].replace("\x7f", r"\u007f")
        for char in text
    )
