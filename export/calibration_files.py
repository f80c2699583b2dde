"""Where tables of measured times lie, and which of them are taken."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .._base.atomic import output_folder, write_file
from .._base.local_paths import is_file
from .._base.texts import parse_json, read_text
from .._base.user_folders import CALIBRATION_VARIABLE, user_calibration_path
from ..ort_ops.dispatch_cost import SPINNING, DispatchCalibration, DispatchCost
from .errors import ExportError

_FORMAT_VERSION = 1

_Table = TypeVar("_Table")


@dataclass(frozen=True)
class OwnTable:
    """What the user has measured for a number of threads.

    Attributes:
        path: of the table; None where there is none.
        threads: that it has to be of.
        note: for the report, why there is none.

    """

    path: Path | None
    threads: int
    note: str = ""


def own_table(threads: int, *, quantized: bool = False) -> OwnTable:
    """Find the user's table of so many threads, else of one."""
    calibration = user_calibration_path()
    if calibration is None:
        return OwnTable(None, 1)
    path = quantized_path(calibration) if quantized else calibration
    try:
        require_named(calibration)
        for count in dict.fromkeys((threads, 1)):
            if is_file(table_path(path, count)):
                return OwnTable(table_path(path, count), count)
    except OSError as error:  # as where HOME is another user's
        return OwnTable(None, 1, f"; {path} cannot be read ({error.strerror})")
    return OwnTable(None, 1)


def require_named(calibration: Path) -> None:
    """Raise ExportError where FANIN_CALIBRATION names a file that is missing with all its kin."""
    if os.environ.get(CALIBRATION_VARIABLE) and not is_file(calibration):
        beside = calibration.parent.glob(f"{glob.escape(calibration.stem)}.*.json")
        if not any(map(is_file, beside)):
            raise ExportError(
                f"{CALIBRATION_VARIABLE} is {calibration}, but there is no such file; measure it "
                f"with fanin calibrate, which writes it, or unset {CALIBRATION_VARIABLE}"
            )


def table_path(calibration: Path, threads: int) -> Path:
    """Name the file of the times on so many threads; that of one thread is the calibration."""
    if threads == 1:
        return calibration
    return calibration.with_name(f"{calibration.stem}.{threads}-threads.json")


def quantized_path(calibration: Path) -> Path:
    """Name the file of the times of 8-bit layers that belongs to a calibration."""
    return calibration.with_name(f"{calibration.stem}.int8.json")


def require_threads(path: Path, found: int, threads: int) -> None:
    """Raise ExportError unless a table is of so many threads."""
    if found != threads:
        raise ExportError(
            f"{path} holds times on {found} thread{'s' * (found > 1)}, where those "
            f"on {threads} belong; remove it, or measure them with fanin calibrate --threads "
            f"{threads}"
        )


def check_threads(threads: object) -> None:
    """Raise ValueError unless the entry of a table is a number of threads."""
    if type(threads) is not int or threads < 1:
        raise ValueError("threads is not a number of threads")


def versioned(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what a file of a table holds: its fields and the version of the format."""
    return {"format_version": _FORMAT_VERSION} | fields


def write_table(path: Path, text: str) -> None:
    """Write a table into a folder that may be new; raises OSError with what to do."""
    output_folder(path.parent)
    write_file(path, text + "\n")


def read_table(path: Path, build: Callable[[dict[str, Any]], _Table], command: str = "") -> _Table:
    """Read a table of the user's.

    Args:
        path: the file.
        build: makes the table of its fields; raises ValueError or TypeError where they are wrong.
        command: options of ``fanin calibrate`` that measure it.

    Raises:
        ExportError: it is none of this version, with the remedy.

    """
    try:
        text = read_text(path)
    except ValueError as error:
        raise _unusable(str(path), error, command) from error
    return parse_table(text, str(path), build, command)


def parse_table(
    text: str, where: str, build: Callable[[dict[str, Any]], _Table], command: str = ""
) -> _Table:
    """Make a table of the text of its file, as :func:`read_table` does."""
    try:
        fields = parse_json(text)
        if fields.pop("format_version") != _FORMAT_VERSION:
            raise ValueError("its format version is not supported")
        return build(fields)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _unusable(where, error, command) from error


def _unusable(where: str, error: Exception, command: str) -> ExportError:
    reason = str(error)
    if isinstance(error, KeyError):
        reason = f"{error} is missing"
    elif not isinstance(error, ValueError):
        reason = "a field is missing, unknown or of another type"
    return ExportError(
        f"{where} is no calibration of this version ({reason}); "
        f"delete it, or measure again with fanin calibrate{command}"
    )


def dispatch_cost() -> DispatchCost:
    """Return what starting threads costs here, as measured, else as the library assumes.

    Raises:
        ExportError: the file of the measured costs is unusable.

    """
    try:
        measured = DispatchCalibration.of_this_machine()
    except ValueError as error:
        raise ExportError(str(error)) from error
    return measured.spinning if measured else SPINNING
