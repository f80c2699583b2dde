"""What it costs to start a run on several threads: the library's values, or this machine's own.

``fanin calibrate`` measures them and keeps them in a file beside the cost table;
``fanin.deploy.open_session`` passes them to the ops as the session config entry ``fanin.dispatch``.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .._base.atomic import output_folder, write_file
from .._base.texts import parse_json, read_text, short
from .._base.user_folders import user_calibration_path

FORMAT_VERSION = 1

_REMEDY = "delete it, or measure again with fanin calibrate"


@dataclass(frozen=True)
class DispatchCost:
    """Microseconds that a run on ``n`` > 1 threads takes beyond its longest share of the work.

    Attributes:
        fixed: whatever the number of threads.
        per_thread: for each of them.

    """

    fixed: float
    per_thread: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {short(value)}, not a number of microseconds")
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; it must be 0 or more microseconds")

    def microseconds(self, threads: int) -> float:
        """Cost of a run on so many threads."""
        return 0.0 if threads <= 1 else self.fixed + self.per_thread * threads

    def entry(self) -> str:
        """Return the value of the session config entry ``fanin.dispatch``."""
        return f"{self.fixed:.4g},{self.per_thread:.4g}"


SPINNING = DispatchCost(1.5, 0.15)
"""What the library assumes of threads that spin while they wait, ONNX Runtime's default."""

SLEEPING = DispatchCost(15.0, 1.5)
"""What it assumes where ``session.intra_op.allow_spinning`` is 0."""


@dataclass(frozen=True)
class DispatchCalibration:
    """Costs of a dispatch, measured on one machine.

    Attributes:
        machine: what ``describe_cpus`` returned there.
        threads: the numbers of threads that were measured; others are interpolated or extrapolated.
        spinning: of threads that spin while they wait.
        sleeping: of threads that do not.

    """

    machine: str
    threads: tuple[int, ...]
    spinning: DispatchCost
    sleeping: DispatchCost

    def save(self, path: Path) -> None:
        """Write the costs as JSON; raises OSError with what to do."""
        text = json.dumps({"format_version": FORMAT_VERSION} | asdict(self), indent=1)
        output_folder(path.parent)
        write_file(path, text + "\n")

    @classmethod
    def load(cls, path: Path) -> DispatchCalibration:
        """Read such a file.

        Raises:
            ValueError: its content is unusable, with the remedy.
            OSError: it cannot be read.

        """
        try:
            fields = parse_json(read_text(path))
            if fields["format_version"] != FORMAT_VERSION:
                raise ValueError("another version")
            if not isinstance(fields["machine"], str):
                raise ValueError("machine is not a text")
            return cls(
                fields["machine"],
                tuple(map(int, fields["threads"])),
                DispatchCost(**fields["spinning"]),
                DispatchCost(**fields["sleeping"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"{path} is no calibration of threads of this version ({error}); {_REMEDY}"
            ) from error

    @classmethod
    def of_this_machine(cls) -> DispatchCalibration | None:
        """Read the user's file; None if there is none, or it was measured on other CPUs.

        Raises:
            ValueError: its content is unusable, with the remedy.

        """
        calibration = user_calibration_path()
        if calibration is None:
            return None
        try:
            found = cls.load(dispatch_path(calibration))
        except OSError:
            return None
        return found if found.machine == describe_cpus() else None


def dispatch_path(calibration: Path) -> Path:
    """Name the file of the costs of a dispatch that belongs to a calibration's cost table."""
    return calibration.with_name(f"{calibration.stem}.threads.json")


def describe_cpus(root: Path = Path("/")) -> str:
    """Describe the machine's CPUs, so that a file from another machine is not taken for its own.

    Args:
        root: Folder that holds ``proc``.

    """
    try:
        with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            first = file.read(4096)  # of many: the whole file takes the system milliseconds
    except OSError:
        first = ""
    found = re.search(r"^model name\s*:\s*(.+)$", first, re.M)
    return f"{found[1].strip() if found else platform.machine()}, {os.cpu_count()} CPUs"
