"""The doctor's verdicts, and its run of a tiny model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .probe_model import EXPECTED, INPUT, probe_model
from .session import open_session

# What a check found: a line, or the line and what to do next.
Finding = str | tuple[str, str]


class FindingError(Exception):
    """A check's own verdict: what is wrong, and what to do."""

    def __init__(self, detail: str, remedy: str):
        super().__init__(detail)
        self.remedy = remedy


def run_probe(providers: Sequence[str]) -> str:
    """Run a tiny model that has no fallback, so that only the kernel can answer."""
    with tempfile.TemporaryDirectory(prefix="fanin-doctor-") as folder:
        path = Path(folder) / "probe.onnx"
        path.write_bytes(probe_model())
        (output,) = open_session(path, threads=1, providers=providers).run(None, {"x": INPUT})
    error = float(np.abs(output - EXPECTED).max())
    if not error <= 1e-6:
        on_cpu = list(providers) == ["CPUExecutionProvider"]
        way_out = "Set FANIN_ISA=scalar" if on_cpu else "Use CPUExecutionProvider"
        raise FindingError(
            f"it computes {output.tolist()} where {EXPECTED.tolist()} is right",
            f"{way_out} to go on, and report this with the output of fanin doctor.",
        )
    return f"runs, largest error {error:.0e}"
