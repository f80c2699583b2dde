"""Results of the doctor's checks, and its runs of tiny models."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .probe_model import PROBES, Probe
from .session import open_session

# What a check found: a line, or a line and what to do next.
Finding = str | tuple[str, str]


class FindingError(Exception):
    """A failed check: what is wrong, and what to do."""

    def __init__(self, detail: str, remedy: str):
        super().__init__(detail)
        self.remedy = remedy


def run_probes(providers: Sequence[str]) -> str:
    """Run a tiny model of each op; without a fallback function, only the kernel can answer."""
    with tempfile.TemporaryDirectory(prefix="fanin-doctor-") as folder:
        worst = max(_run_probe(probe, Path(folder), providers) for probe in PROBES)
    return f"{' and '.join(probe.op for probe in PROBES)} run, largest error {worst:.0e}"


def _run_probe(probe: Probe, folder: Path, providers: Sequence[str]) -> float:
    path = folder / f"{probe.op}.onnx"
    path.write_bytes(probe.model)
    (output,) = open_session(path, threads=1, providers=providers).run(None, {"x": probe.x})
    error = float(np.abs(output - probe.expected).max())
    if not error <= 1e-6:
        on_cpu = list(providers) == ["CPUExecutionProvider"]
        way_out = "Set FANIN_ISA=scalar" if on_cpu else "Use CPUExecutionProvider"
        raise FindingError(
            f"{probe.op} computes {output.tolist()}, but {probe.expected.tolist()} is correct",
            f"{way_out} to go on, and report this with the output of fanin doctor.",
        )
    return error
