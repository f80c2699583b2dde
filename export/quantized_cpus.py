"""How fast condensed 8-bit layers are with instruction sets other than the measured one.

For each instruction set there is one layer's ratio of dense to condensed times. Other layers are
taken to differ from it as they do on the measured machines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .interpolation import interpolate

_ROWS = (1, 8, 16, 64, 256)

_RATIOS: dict[str, tuple[float, ...]] = {
    "avx512vbmi": (6.7, 5.2, 5.1, 5.2, 5.6),
    "avx512vnni": (6.1, 2.5, 2.1, 2.0, 2.0),
    "avx512bw": (1.5, 1.2, 1.4, 1.25, 1.27),
    "avxvnni": (3.4, 1.6, 1.5, 1.4, 1.3),
    "avx2": (1.5, 1.2, 1.2, 0.92, 0.94),
    "dotprod": (2.0, 1.4, 1.4, 1.4, 1.4),
    "scalar": (0.16,) * 5,
}
"""Dense over condensed, by the instruction set of our kernels and rows of X.

Of a layer with 2.36 million weights at 90 %, next to ONNX Runtime's dense int8 with AVX-512 VNNI.
The first is that of calibration.int8.json; the next four were measured on one Xeon with the
instruction set forced (docs/kernels.md). On CPUs that lack AVX-512 VNNI the dense form takes
longer, so that condensed layers are chosen too seldom rather than too often. With AVX-512 but no
VNNI, kernels of two and more samples compute in float32, whose times stand for theirs. The figures
of Arm64 and of scalar code are estimates from instruction counts.
"""

_MEASURED = "avx512vbmi"
"""The instruction set of the tables that come with fanin."""

_SAME = {"avx512bf16": _MEASURED, "avx512f": "avx2", "neon": "dotprod"}
"""Instruction sets that have no figures of their own: those that they are taken for."""


@dataclass(frozen=True)
class Cpu:
    """What decides the speed of 8-bit layers.

    Attributes:
        isa: instruction set of our kernels, as fanin.ort_ops names them.
        amx: whether the CPU multiplies tiles of 8-bit integers (AMX), as ONNX Runtime's dense
            layers do.

    """

    isa: str
    amx: bool = False

    @classmethod
    def of_this_machine(cls, root: Path = Path("/")) -> Cpu:
        """Describe this machine; AMX is found on Linux only, as ONNX Runtime uses it there only.

        Args:
            root: Folder that holds ``proc``.

        Raises:
            ValueError: FANIN_ISA names no instruction set of this CPU.

        """
        from ..ort_ops import _native

        try:
            with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
                first = file.read(16384)  # of many CPUs
        except OSError:
            first = ""
        flags = re.search(r"^flags\s*:(.*)$", first, re.M)
        return cls(_native.select_isa(), flags is not None and "amx_int8" in flags[1].split())

    @property
    def note(self) -> str:
        """Say what the times are scaled to; empty where they are not."""
        return f", scaled to {self.isa}" if self._kernels != _MEASURED else ""

    def slowdown(self, rows: int) -> float:
        """Return by how many times a condensed layer takes longer than on the measured machines."""
        of_measured, of_this = (_RATIOS[isa] for isa in (_MEASURED, self._kernels))
        return _at(_ROWS, of_measured, rows) / _at(_ROWS, of_this, rows)

    @property
    def _kernels(self) -> str:
        return _SAME.get(self.isa, self.isa)


def _at(axis: tuple[int, ...], ratios: tuple[float, ...], rows: int) -> float:
    within = min(max(rows, axis[0]), axis[-1])
    point = np.log([within])
    return float(np.exp(interpolate(np.log(ratios), [np.log(axis)], point)))
