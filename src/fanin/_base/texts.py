"""Reads untrusted text files: bounded in size, parsed into values or refused with a reason."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 16 << 20
"""Far above any configuration or table; the largest of fanin's own has 0.2 MB."""


def read_text(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> str:
    """Read a regular file of at most ``limit`` bytes as UTF-8, with or without a byte-order mark.

    Raises:
        OSError: If it is missing, unreadable or not a regular file.
        ValueError: If it is larger than ``limit`` or not UTF-8.

    """
    # Does not block on a pipe without a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{Path(path)} is not a regular file")
    with open(handle, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{Path(path)} has more than {limit >> 20} MiB")
    return content.decode("utf-8-sig").replace("\r\n", "\n")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises ValueError if it is invalid or nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def parse_json(text: str) -> Any:
    """Parse JSON; raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def short(value: object, length: int = 100) -> str:
    """Quote a value for a message, shortened to about ``length`` characters."""
    if isinstance(value, str) and len(value) > length:
        return f"{value[:length]!r}…"
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}…"
