"""The server's log: one JSON object per line, or plain text."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any


def event(logger: logging.Logger, name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with fields; fields that are None are omitted."""
    if logger.isEnabledFor(level):
        kept = {key: value for key, value in fields.items() if value is not None}
        logger.log(level, name, extra={"fields": kept})


def configure_logging(log_format: str) -> None:
    """Send the logs of the server, of uvicorn and of OpenTelemetry to stderr.

    Lines that cannot be written (full disk, closed pipe) are dropped; the server continues.
    """
    handler = LineHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    for name in ("fanin.serve", "uvicorn", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
    # uvicorn's messages on start and stop repeat the server's own.
    for name in ("uvicorn.error", "opentelemetry"):
        logging.getLogger(name).setLevel(logging.WARNING)


class LineHandler(logging.Handler):
    """Writes lines to stderr and drops those that it cannot write.

    A buffered stream would keep the rest of a line cut off by a full disk and glue it to a later
    line.
    """

    _cut = False
    descriptor = 2

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line, or as several if it has an exception."""
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
            # Indented, so that a line of an error message cannot pass for a log line.
            traceback = self.formatException(record.exc_info).split("\n")
            lines += [f"  {_printable(line)}" for line in traceback]
        return "\n".join(lines)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _one_word(value: Any) -> str:
    """Quote text with spaces, quotes, or characters that terminals or line readers interpret."""
    text = str(value)
    if text and text.isprintable() and not set(text) & set(' "'):
        return text
    return _printable(json.dumps(text, ensure_ascii=False))


def _printable(text: str) -> str:
    """Escape unprintable characters: C0 and C1 control codes, U+2028, text direction, ...."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else json.dumps(char)[1:-1].replace("\x7f", r"\u007f")
        for char in text
    )
