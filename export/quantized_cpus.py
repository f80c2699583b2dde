"""What is known of 8-bit layers on CPUs without measured tables of their own.

Only the ratio of dense to condensed times decides a form. For each instruction set there is that of
one layer; other layers are taken to differ from it as they do on the measured machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .interpolation import interpolate

SIZE, DENSITY = 1536, 0.1
"""The layer: as many weights as 3072 -> 768 and 768 -> 3072 have, whose ratios are those below."""

_ROWS = (1, 8, 16, 64, 256)

_RATIOS: dict[str, tuple[float, ...]] = {
    "avx512vnni": (6.1, 2.5, 2.1, 2.0, 2.0),
    "avx512bw": (1.5, 1.2, 1.4, 1.25, 1.27),
    "avxvnni": (3.4, 1.6, 1.5, 1.4, 1.3),
    "avx2": (1.5, 1.2, 1.2, 0.92, 0.94),
    "dotprod": (2.0, 1.4, 1.4, 1.4, 1.4),
    "scalar": (0.16,) * 5,
}
"""Dense over condensed, by the instruction set of our kernels and rows of X.

The first four were measured on one Xeon with the instruction set forced (docs/kernels.md), all next
to ONNX Runtime's dense int8 with AVX-512 VNNI: on CPUs that lack it the dense form takes longer, so
that condensed layers are chosen too seldom rather than too often. With AVX-512 but no VNNI, kernels
of two and more samples compute in float32, whose times stand for theirs. The figures of Arm64 and
of scalar code are estimates from instruction counts.
"""

_SAME = {"avx512f": "avx2", "neon": "dotprod"}
"""Instruction sets that have no figures of their own: those that they are taken for."""

_TILE_ROWS = 64
"""From so many rows on, AMX tiles are taken to be full."""

_FEW_ROWS = (6.6, 3.0, 3.0)
"""Dense over condensed with AMX at 1, 8 and 16 rows, and from there to the tiles. Condensed int8 is
33 and 17 times as fast as dense float32 (90 %, Zen 5), dense int8 5 and 5.7 times (with AMX)."""

_FULL_TILES = 0.44
"""The same of full tiles, by their limit: 45 multiply-adds a cycle, worth 450 dense ones, of 1024.
ONNX Runtime was measured at a fourth of it, but dense layers that tiles serve stay dense."""


@dataclass(frozen=True)
class Cpu:
    """What decides the speed of 8-bit layers.

    Attributes:
        isa: instruction set of our kernels, as fanin.ort_ops names them.
        amx: whether the CPU multiplies tiles of 8-bit integers (AMX), which the runtime uses.

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
        if dense_over_condensed(self, 1) is None:
            return ""
        return f", scaled to {self.isa}{' with AMX' if self.amx else ''}"


def dense_over_condensed(cpu: Cpu, rows: int) -> float | None:
    """Return dense over condensed time of the layer on a CPU; None where it is as measured.

    The measured machine has AVX-512 VBMI and no AMX.
    """
    ratios = _RATIOS.get(_SAME.get(cpu.isa, cpu.isa))
    known = [] if ratios is None else [_at(_ROWS, ratios, rows)]
    if cpu.amx:
        known.append(_FULL_TILES if rows >= _TILE_ROWS else _at(_ROWS[:3], _FEW_ROWS, rows))
    return min(known, default=None)


def _at(axis: tuple[int, ...], ratios: tuple[float, ...], rows: int) -> float:
    within = min(max(rows, axis[0]), axis[-1])
    point = np.log([within])
    return float(np.exp(interpolate(np.log(ratios), [np.log(axis)], point)))
