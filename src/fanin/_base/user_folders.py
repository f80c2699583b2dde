"""Where a user's files of fanin lie, on machines too where the user has no home."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Say where fanin keeps what it can make or fetch again: ``$XDG_CACHE_HOME`` or ``~/.cache``.

    None where the user has no home: HOME is not set, and the system does not know the user. The
    folder need not exist.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path | None:
    """Say where fanin keeps what it cannot: ``$XDG_DATA_HOME`` or ``~/.local/share``; as above."""
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, below_home: str) -> Path | None:
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # which the XDG specification tells to ignore
        base = Path(os.path.expanduser("~")) / below_home
    return base / "fanin" if base.is_absolute() else None
