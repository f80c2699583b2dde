"""Measure the memory of sessions of a model in a separate process; prints JSON.

Usage: _memory_probe.py WARM_MODEL MODEL SESSIONS CYCLES. All numbers are bytes in addition to those
of the process after one session of WARM_MODEL.
"""

import gc
import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from fanin import ort_ops


def rollup() -> dict[str, int]:
    text = Path("/proc/self/smaps_rollup").read_text()
    return {name: int(kb) << 10 for name, kb in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10


def opened(path: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("fanin.threads", "1")
    ort_ops.register(options)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def digest(session: onnxruntime.InferenceSession) -> str:
    """Of the outputs of a run on each of the two layouts."""
    columns = session.get_inputs()[0].shape[-1]
    found = hashlib.sha256()
    for batch in (1, 5):
        x = np.linspace(-1, 1, batch * columns, dtype=np.float32).reshape(batch, columns)
        found.update(session.run(None, {"X": x})[0])
    return found.hexdigest()


def main(warm: str, model: str, sessions: int, cycles: int) -> None:
    digest(opened(warm))
    gc.collect()
    before = rollup()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    live = [opened(model)]
    result = {"peak": peak() - before["Rss"], "first": rollup()["Anonymous"] - before["Anonymous"]}
    live += [opened(model) for _ in range(sessions - 1)]
    after = rollup()
    result["anonymous"] = after["Anonymous"] - before["Anonymous"]
    result["file"] = (after["Rss"] - after["Anonymous"]) - (before["Rss"] - before["Anonymous"])
    result["digests"] = len({digest(session) for session in live})
    live.clear()
    gc.collect()
    result["closed"] = rollup()["Anonymous"] - before["Anonymous"]
    for _ in range(cycles):
        digest(opened(model))
    gc.collect()
    result["cycled"] = rollup()["Anonymous"] - before["Anonymous"] - result["closed"]
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
