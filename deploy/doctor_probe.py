"""Results of the doctor's checks, and its runs of tiny models."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..ort_ops.contract import QUANTIZED_OPS
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
    """Run a tiny model of each op; without a fallback function, only the kernel can answer.

    Ops on integers have kernels for the CPU only, and would run there with any provider.
    """
    probes = [probe for probe in PROBES if _on_cpu(providers) or probe.op not in QUANTIZED_OPS]
    with tempfile.TemporaryDirectory(prefix="fanin-doctor-") as folder:
        worst = max(_run_probe(probe, Path(folder), providers) for probe in probes)
    *names, last = (probe.op for probe in probes)
    return f"{', '.join(names)} and {last} run, largest error {worst:.0e}"


def _on_cpu(providers: Sequence[str]) -> bool:
    return list(providers) == ["CPUExecutionProvider"]


def _run_probe(probe: Probe, folder: Path, providers: Sequence[str]) -> float:
    path = folder / f"{probe.op}.onnx"
    path.write_bytes(probe.model)
    (output,) = open_session(path, threads=1, providers=providers).run(None, {"x": probe.x})
    error = float(np.abs(output.astype(np.float64) - probe.expected).max())
    if not error <= 1e-6:
        way_out = "Set FANIN_ISA=scalar" if _on_cpu(providers) else "Use CPUExecutionProvider"
        raise FindingError(
            f"{probe.op} computes {output.tolist()}, but {probe.expected.tolist()} is correct",
            f"{way_out} to go on, and report this with the output of fanin doctor.",
        )
    return error
