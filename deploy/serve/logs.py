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
    handler = _Handler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    for name in ("fanin.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
    # Its lines on start and stop say nothing that the server's own do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class _Handler(logging.Handler):
    """Writes lines to stderr and loses those that it cannot write.

    A buffer would keep the rest of a line that a full disk cut off, and glue it to a later one.
    """

    _cut = False

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        if self._cut:
            line = b"\n" + line
        done = 0
        try:
            while done < len(line):
                done += os.write(2, line[done:])
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
        words = [_time(record), record.levelname, record.getMessage()]
        words += [f"{key}={_one_line(value)}" for key, value in fields.items()]
        text = " ".join(words)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _one_line(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if set(text) & set(' \n\r\t"') else text
