"""ONNX Runtime's profiler, and what a node costs besides its kernel with and without it."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping, Sequence
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


def run_profiled(
    path: Path,
    plain: Sequence[Path],
    inputs: Mapping[str, np.ndarray],
    threads: int,
    *,
    library: bool,
    blocks: int,
    runs: int,
) -> tuple[list[dict[str, Any]], list[list[list[float]]]]:
    """Profile a model while the models ``plain`` run in turn with it, without the profiler.

    Each block is ``runs`` runs of every model, so that all meet the machine in the same state.

    Returns:
        The profiler's events, and the seconds of [plain model][block][run].

    Raises:
        SessionError: a file must not be opened; or what the runtime raises.

    """
    options = load_onnxruntime().SessionOptions()
    options.enable_profiling = True
    with TemporaryDirectory(prefix="fanin-profile-") as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        profiled = open_model(path, threads, options, library=library)
        others = [open_model(one, threads, library=library) for one in plain]
        times: list[list[list[float]]] = [[] for _ in plain]
        for _ in range(blocks):
            _run_seconds(profiled, inputs, runs)
            for session, own in zip(others, times, strict=True):
                own.append(_run_seconds(session, inputs, runs))
        events = json.loads(Path(profiled.end_profiling()).read_text())
        del profiled, others, session
        gc.collect()  # their threads end now, not during the next engine's measurement
    return events, times


def _run_seconds(session: Any, inputs: Mapping[str, np.ndarray], runs: int) -> list[float]:
    feeds, times = dict(inputs), []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return times


def is_node_time(event: Mapping[str, Any]) -> bool:
    """Whether an event of the profiler is a run of one node."""
    return event.get("cat") == "Node" and event["name"].endswith("_kernel_time")


@dataclass(frozen=True)
class EmptyNode:
    """Cost of a node that does next to nothing, in seconds: medians over a chain of them.

    Attributes:
        profiled_seconds: what the profiler reports for one, which includes reading the shapes of
            its inputs and outputs.
        seconds: what one adds to a run without profiler, ONNX Runtime's work for it included.
        call_seconds: what a run takes besides its nodes.

    """

    profiled_seconds: float
    seconds: float
    call_seconds: float


def time_empty_nodes(threads: int) -> EmptyNode:
    """Time runs of one node and of many, in turn."""
    with TemporaryDirectory(prefix="fanin-profile-") as folder:
        paths = [_save_chain(Path(folder), nodes) for nodes in (1, 1 + _NODES)]
        inputs = {"x": np.ones(4, np.float32)}
        events, times = run_profiled(
            paths[1], paths, inputs, threads, library=False, blocks=_BLOCKS, runs=_RUNS
        )
    one, many = (median(map(median, blocks)) for blocks in times)
    each = max(0.0, (many - one) / _NODES)
    shown = [event["dur"] / 1e6 for event in events if is_node_time(event)]
    return EmptyNode(sum(shown) / len(shown), each, one - each)


def _save_chain(folder: Path, count: int) -> Path:
    onnx = require("onnx", "the benchmark makes its models with it")
    names = ["x", *(f"v{number}" for number in range(1, count)), "y"]
    # No optimization removes or merges sines.
    nodes = [onnx.helper.make_node("Sin", [before], [after]) for before, after in pairwise(names)]
    path = folder / f"chain-{count}.onnx"
    onnx.save(build_model(nodes, [4], [4]), path)
    return path
