"""What the CPU of this machine calls itself."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_fields() -> dict[str, str]:
    """Read the entries of the first CPU in /proc/cpuinfo; none where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_name() -> str | None:
    """Return the CPU's name, as calibrations bear it; None where the system does not tell."""
    return cpu_fields().get("model name") or platform.processor() or None
