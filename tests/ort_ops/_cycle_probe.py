"""Measure by how much a process grows while sessions of a model are opened and closed.

Usage: _cycle_probe.py MODEL X.npy WARM CYCLES. Prints bytes.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from fanin import ort_ops


def growth(model: Path, x: np.ndarray, *, warm: int, cycles: int) -> int:
    """Resident bytes that remain after ``cycles`` sessions, following some for warm-up."""
    np.save(model.with_suffix(".npy"), x)
    command = [sys.executable, __file__, model, model.with_suffix(".npy"), str(warm), str(cycles)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def cycle(model: str, x: np.ndarray, times: int) -> None:
    for i in range(times):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        # Another thread count needs another registration.
        options.add_session_config_entry("fanin.threads", str(1 + i % 4))
        ort_ops.register(options)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.run(None, {"X": x})


def main(model: str, x: np.ndarray, warm: int, cycles: int) -> None:
    cycle(model, x, warm)
    before = resident_bytes()
    cycle(model, x, cycles)
    print(resident_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
