"""What a node costs besides its kernel, with ONNX Runtime's profiler and without it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ...runtime import load_onnxruntime
from ..engines.onnx_models import build_model
from ..engines.ort import open_model
from ..requirements import require

_NODES = 100
_BLOCKS, _RUNS = 20, 10


@dataclass(frozen=True)
class EmptyNode:
    """Seconds, medians over a chain of nodes that do next to nothing.

    ``profiled_seconds`` is how long the profiler says that one took: it looks at the shapes of
    inputs and outputs meanwhile. ``seconds`` is what one adds to a run without profiler, ONNX
    Runtime's work for it included; ``call_seconds`` is what a run takes besides its nodes.
    """

    profiled_seconds: float
    seconds: float
    call_seconds: float


def time_empty_nodes(threads: int) -> EmptyNode:
    """Time runs of one node and of many, in turn."""
    options = load_onnxruntime().SessionOptions()
    options.enable_profiling = True
    with TemporaryDirectory(prefix="fanin-profile-") as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        paths = [_save_chain(Path(folder), nodes) for nodes in (1, 1 + _NODES)]
        profiled = open_model(paths[1], threads, options, library=False)
        plain = [open_model(path, threads, library=False) for path in paths]
        blocks = [[_run_seconds(one) for one in (profiled, *plain)] for _ in range(_BLOCKS)]
        events = json.loads(Path(profiled.end_profiling()).read_text())
    one, many = (median(times) for times in list(zip(*blocks, strict=True))[1:])
    each = max(0.0, (many - one) / _NODES)
    shown = [event["dur"] / 1e6 for event in events if is_node_time(event)]
    return EmptyNode(sum(shown) / len(shown), each, one - each)


def is_node_time(event: Mapping[str, Any]) -> bool:
    """Whether an event of the profiler is a run of one node."""
    return event.get("cat") == "Node" and event["name"].endswith("_kernel_time")


def _run_seconds(session: Any) -> float:
    inputs = {"x": np.ones(4, np.float32)}
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        session.run(None, inputs)
        times.append(time.perf_counter() - start)
    return median(times)


def _save_chain(folder: Path, count: int) -> Path:
    onnx = require("onnx", "the benchmark makes its models with it")
    names = ["x", *(f"v{number}" for number in range(1, count)), "y"]
    # No optimisation removes sines or puts them together.
    nodes = [onnx.helper.make_node("Sin", [before], [after]) for before, after in pairwise(names)]
    path = folder / f"chain-{count}.onnx"
    onnx.save(build_model(nodes, [4], [4]), path)
    return path
