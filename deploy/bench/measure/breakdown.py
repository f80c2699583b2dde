"""Where a model's time goes: its nodes, as ONNX Runtime's own profiler times them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ....ort_ops.contract import OPS
from .profiling import EmptyNode, is_node_time, run_profiled, time_empty_nodes

_BLOCK = 5
_MIN_RUNS, _MAX_RUNS, _SECONDS = 5, 100, 2.0


@dataclass(frozen=True)
class NodeTime:
    """One node: median over the profiled runs, in seconds, less that of an empty node.

    The profiler reads shapes while it times: 3 to 6 µs per node, a fifth of a small network.
    """

    name: str
    op_type: str
    seconds: float


@dataclass(frozen=True)
class Breakdown:
    """The nodes of one engine's model, longest first; all times are medians over ``runs``.

    ``runtime_seconds`` is what ONNX Runtime takes for as many empty nodes, ``call_seconds`` for a
    call from Python, both measured without the profiler on other models (see EmptyNode).
    ``explained`` is the sum of all of these over the time of this model's runs without the
    profiler, which took turns with the profiled ones.
    """

    engine: str
    runs: int
    nodes: tuple[NodeTime, ...]
    nodes_seconds: float
    runtime_seconds: float
    call_seconds: float
    explained: float

    def by_op_type(self) -> list[tuple[str, int, float]]:
        """Sum the nodes of each operator: name, number of nodes, seconds; longest first."""
        sums: dict[str, list[float]] = {}
        for node in self.nodes:
            sums.setdefault(node.op_type, []).append(node.seconds)
        rows = [(op_type, len(times), sum(times)) for op_type, times in sums.items()]
        return sorted(rows, key=lambda row: -row[2])

    @property
    def total_seconds(self) -> float:
        """A whole run, as the rows explain it."""
        return self.nodes_seconds + self.runtime_seconds + self.call_seconds

    @property
    def condensed_seconds(self) -> float:
        """Time of fanin's ops."""
        return sum(node.seconds for node in self.nodes if node.op_type in OPS)


def amdahl_limit(
    dense_seconds: float, condensed_seconds: float, condensed: Breakdown
) -> float | None:
    """Return the speed-up of the whole model if its condensed nodes took no time (Amdahl's law).

    None where nothing else was long enough to be measured.
    """
    rest = 1 - condensed.condensed_seconds / condensed.total_seconds
    return dense_seconds / (condensed_seconds * rest) if rest > 0 else None


def profile(
    engine: str,
    path: Path,
    inputs: Mapping[str, np.ndarray],
    threads: int,
    run_seconds: float,
    *,
    library: bool,
) -> Breakdown:
    """Profile a model file on ``inputs``; ``run_seconds`` is about what a run takes.

    Raises:
        SessionError: the file must not be opened; or what the runtime raises.

    """
    count = int(np.clip(_SECONDS / max(run_seconds, 1e-9), _MIN_RUNS, _MAX_RUNS))
    events, ((_, *walls),) = run_profiled(
        path,
        [path],
        inputs,
        threads,
        library=library,
        blocks=1 + math.ceil(count / _BLOCK),
        runs=_BLOCK,
    )
    return _breakdown(engine, events, list(chain(*walls)), time_empty_nodes(threads))


def _breakdown(
    engine: str, events: Sequence[Mapping[str, Any]], walls: Sequence[float], empty: EmptyNode
) -> Breakdown:
    """Assign the profiler's events, whose times are whole microseconds, to runs and nodes."""
    runs = [event for event in events if event.get("name") == "model_run"][-len(walls) :]
    first = min(event["ts"] for event in runs)
    times: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if is_node_time(event) and event["ts"] >= first:
            key = (event["name"].removesuffix("_kernel_time"), event["args"]["op_name"])
            seconds = max(0.0, event["dur"] / 1e6 - empty.profiled_seconds)
            times.setdefault(key, []).append(seconds)
    # A node inside a loop runs several times a run; its time is the sum of them.
    nodes = [
        NodeTime(name, op_type, median(_sums(durations, len(runs))))
        for (name, op_type), durations in times.items()
    ]
    total = sum(node.seconds for node in nodes)
    around = empty.seconds * sum(map(len, times.values())) / len(runs)
    return Breakdown(
        engine=engine,
        runs=len(runs),
        nodes=tuple(sorted(nodes, key=lambda node: -node.seconds)),
        nodes_seconds=total,
        runtime_seconds=around,
        call_seconds=empty.call_seconds,
        explained=(total + around + empty.call_seconds) / median(walls),
    )


def _sums(durations: Sequence[float], runs: int) -> list[float]:
    """Group the durations of one node by run, evenly; a node that skips runs counts whole."""
    each, rest = divmod(len(durations), runs)
    if rest or not each:
        return [sum(durations) / runs]
    return [sum(durations[at : at + each]) for at in range(0, len(durations), each)]
