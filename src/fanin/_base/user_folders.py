"""Folders for fanin's files of a user, who may have no home folder."""

from __future__ import annotations

import os
from pathlib import Path

CALIBRATION_VARIABLE = "FANIN_CALIBRATION"
"""Environment variable that names the user's calibration."""


def cache_folder() -> Path | None:
    """Return the folder for what can be recreated: ``$XDG_CACHE_HOME`` or ``~/.cache``.

    The folder may not exist. None if the user has no home: HOME is not set, and the system does not
    know the user.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path | None:
    """Return the folder for everything else: ``$XDG_DATA_HOME`` or ``~/.local/share``; as above."""
    return _folder("XDG_DATA_HOME", ".local/share")


def user_calibration_path() -> Path | None:
    """Say where the user's cost table is: in FANIN_CALIBRATION, or in the user's data folder.

    None where neither is known.
    """
    named = os.environ.get(CALIBRATION_VARIABLE)
    if named:
        return Path(named)
    folder = data_folder()
    return None if folder is None else folder / "calibration.json"


def _folder(variable: str, below_home: str) -> Path | None:
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # to be ignored, says the XDG specification
        base = Path(os.path.expanduser("~")) / below_home
    return base / "fanin" if base.is_absolute() else None
