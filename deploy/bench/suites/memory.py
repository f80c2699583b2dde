"""Memory of a model: its files, and its pages in memory per session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ...errors import SessionError
from ...session import open_session
from ..engines.peers.child_process import (
    DEEPSPARSE_PYTHON,
    NO_DEEPSPARSE,
    REMEDIES,
    ChildProcess,
    RemoteError,
    worker_command,
)
from ..engines.peers.deepsparse_model import UnsupportedModelError, deepsparse_file
from ..engines.protocol import EngineUnavailableError
from ..measure.timing import Progress
from ..report.blocks import conditions, figure_title
from ..report.document import Document, Notes, Table, Text
from ..report.figure import Axis, Figure, Panel, Series
from ..results.result import Recorder, Result
from .model import ENGINES
from .model_pair import ModelPairSpec, file_bytes, input_shapes, with_batch
from .specs import check_choices


@dataclass(frozen=True)
class BenchMemorySpec(ModelPairSpec):
    """An exported model and its dense baseline, opened ``sessions`` times in one process each.

    ``engines`` as in BenchModelSpec; inputs have ``batch`` samples.
    """

    sessions: int = 4
    batch: int = 1
    threads: int = 1
    engines: tuple[str, ...] = ENGINES[:2]
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sessions", "batch", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        check_choices("engines", self.engines, ENGINES)


@dataclass(frozen=True)
class EngineMemory:
    """One engine's memory, in bytes; ``excluded`` says why there are no numbers.

    ``anonymous`` and ``file_backed`` are the growth of the process with each number of sessions,
    from one on, relative to the process with the packages loaded. Anonymous pages are the process's
    own; file-backed ones (the weights of a mapped file) are shared by all processes that map the
    file, and the system may reclaim them.
    """

    engine: str
    version: str
    file_bytes: int
    anonymous: tuple[int, ...]
    file_backed: tuple[int, ...]
    excluded: str | None = None

    @property
    def anonymous_per_session(self) -> float | None:
        """Growth for each session after the first; None with one session."""
        if len(self.anonymous) < 2:
            return None
        return (self.anonymous[-1] - self.anonymous[0]) / (len(self.anonymous) - 1)


MemoryResult = Result[EngineMemory]


def bench_memory(spec: BenchMemorySpec, *, progress: Progress | None = None) -> MemoryResult:
    """Measure the memory of the engines, each in a process of its own.

    Args:
        spec: what to measure.
        progress: told each engine's name and the share done.

    Raises:
        SessionError: a file does not open, or the system is not Linux.

    """
    if not os.path.exists("/proc/self/smaps_rollup"):
        raise SessionError(
            "the system has no /proc/self/smaps_rollup, which tells anonymous from shared memory",
            "Run this on Linux.",
            model=spec.model,
        )
    spec.require_baseline()
    recorder = Recorder()
    condensed, dense = open_session(spec.model), open_session(spec.dense_path)
    shapes = input_shapes(spec.model, spec.dense_path, (spec.batch,), condensed, dense)
    del condensed, dense
    inputs = with_batch(shapes, spec.batch)
    engines = []
    with tempfile.TemporaryDirectory(prefix="fanin-memory-") as folder:
        for number, name in enumerate(spec.engines):
            if progress:
                progress(name, number / len(spec.engines))
            engines.append(_measure(spec, name, inputs, Path(folder)))
    sessions = "1 session" if spec.sessions == 1 else f"{spec.sessions} sessions"
    title = f"Memory of {spec.model.name}, {sessions}"
    return recorder.result("memory", title, spec.to_dict(), None, tuple(engines))


def memory_document(result: Result[EngineMemory]) -> Document:
    """Report on the engines; the figure shows own memory against the number of sessions."""
    out = [one for one in result.cases if one.excluded]
    versions = [f"{one.engine}: {one.version}" for one in result.cases if one.version]
    headings = (
        "engine",
        "file",
        "own, 1 session",
        "own, all",
        "own, each additional",
        "mapped files",
    )
    table = Table(headings, [_row(one) for one in result.cases], words=1, title=result.title)
    blocks = [
        table,
        Notes([f"{one.engine} is excluded ({one.excluded})" for one in out]),
        Text(
            "*own*: anonymous pages, which no other process shares. *mapped files*: pages of "
            "files, which are shared by all processes that map them and which the system may "
            "reclaim. Both are relative to the process with the packages loaded, after every "
            "session has run once; each engine has a process of its own "
            "(`/proc/self/smaps_rollup`)."
        ),
        *conditions(result, *versions),
    ]
    series = []
    for one in result.cases:
        if one.excluded is None:
            counts, sizes = range(1, len(one.anonymous) + 1), [size / 1e6 for size in one.anonymous]
            series.append(Series(one.engine, "line", counts, sizes, marker="o"))
    most = max((len(one.xs) for one in series), default=1)
    x = Axis("sessions in one process", ticks={count: str(count) for count in range(1, most + 1)})
    largest = max((max(one.ys) for one in series), default=1.0)
    panel = Panel(series, x, Axis("anonymous memory, MB", limits=(0, 1.1 * largest)))
    return Document(result.title, blocks, [table], Figure(figure_title(result), [panel]))


def _row(engine: EngineMemory) -> list[str]:
    if engine.excluded is not None:
        return [engine.engine, _megabytes(engine.file_bytes), "excluded", "", "", ""]
    each = engine.anonymous_per_session
    sizes = [engine.file_bytes, engine.anonymous[0], engine.anonymous[-1]]
    further = "" if each is None else _megabytes(each)
    return [engine.engine, *map(_megabytes, sizes), further, _megabytes(engine.file_backed[-1])]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _measure(
    spec: BenchMemorySpec, name: str, inputs: Mapping[str, Sequence[int]], folder: Path
) -> EngineMemory:
    if name == "structured" and spec.no_structured:
        return EngineMemory(name, "", 0, (), (), spec.no_structured)
    path = spec.path_of(name)
    size = file_bytes(path)
    kind = {"dense": "ort", "structured": "ort", "condensed": "fanin"}.get(name, name)
    command = worker_command(kind, spec.deepsparse_python)
    try:
        if name == "deepsparse":
            if not spec.deepsparse_python.is_file():
                raise EngineUnavailableError(NO_DEEPSPARSE)
            copy = folder / "deepsparse.onnx"
            deepsparse_file(path, copy)
            path = copy
        with closing(ChildProcess(kind, spec.threads, REMEDIES.get(kind, ""), command)) as child:
            reply = child.ask(
                "memory",
                kind=kind,
                model=str(path.absolute()),
                sessions=spec.sessions,
                threads=spec.threads,
                inputs=inputs,
            )
    except (EngineUnavailableError, UnsupportedModelError, RemoteError) as error:
        return EngineMemory(name, "", size, (), (), str(error))
    start, *steps = reply["steps"]
    grown = {key: tuple(step[key] - start[key] for step in steps) for key in start}
    return EngineMemory(name, reply["version"], size, grown["anonymous"], grown["file_backed"])
