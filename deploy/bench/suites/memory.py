"""What a model takes: its files, its pages in memory, and those of each further session."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...errors import SessionError
from ...session import open_session
from ..engines.peers import remote
from ..engines.peers.deepsparse_model import UnsuitableError, deepsparse_file
from ..measure.machine import describe_machine
from ..measure.timing import Progress
from ..results.result import SCHEMA_VERSION
from .layer import DEEPSPARSE_PYTHON
from .model import ENGINES
from .model_pair import baseline_path, file_bytes, input_shapes, require_baseline, structured_path

_PROBE = Path(remote.__file__).with_name("memory_probe.py")
_LIMIT = 600.0


@dataclass(frozen=True)
class BenchMemorySpec:
    """An exported model and its dense baseline, opened ``sessions`` times in one process each.

    ``dense`` and ``engines`` as in BenchModelSpec; inputs have ``batch`` samples.
    """

    model: Path
    dense: Path | None = None
    sessions: int = 4
    batch: int = 1
    threads: int = 1
    engines: tuple[str, ...] = ENGINES[:2]
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self):
        object.__setattr__(self, "model", Path(self.model))
        for name in ("sessions", "batch", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        unknown = set(self.engines) - set(ENGINES)
        if unknown or not self.engines or len(set(self.engines)) < len(self.engines):
            raise ValueError(f"engines are {self.engines}; there are {', '.join(ENGINES)}")

    @property
    def dense_path(self) -> Path:
        """The baseline's file, given or by its usual name."""
        return baseline_path(self.model, self.dense)

    @property
    def structured_path(self) -> Path:
        """The file of the structured form, by its usual name."""
        return structured_path(self.model)


@dataclass(frozen=True)
class EngineMemory:
    """One engine's memory, in bytes; ``excluded`` says why there are no numbers.

    ``anonymous`` and ``file_backed`` are what the process grew by with each number of sessions,
    from one on, over what it took with the packages loaded. Anonymous pages are the process's own;
    file-backed ones (the weights of a mapped file) are shared by all processes that map the file,
    and the system may take them back.
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


@dataclass(frozen=True)
class MemoryResult:
    """A finished measurement."""

    title: str
    created: str
    seconds: float
    spec: dict[str, Any]
    machine: dict[str, Any]
    engines: tuple[EngineMemory, ...]
    kind: str = "memory"
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return it as numbers, texts, lists and dicts only."""
        return dataclasses.asdict(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write results.json, results.md and results.png into ``folder``; returns their paths."""
        from .memory_report import save_memory_report

        return save_memory_report(self, Path(folder))


def bench_memory(spec: BenchMemorySpec, *, progress: Progress | None = None) -> MemoryResult:
    """Measure the memory of the engines, each in a process of its own.

    Raises SessionError when a file does not open or the system does not tell (it must be Linux).
    """
    if not os.path.exists("/proc/self/smaps_rollup"):
        raise SessionError(
            "the system has no /proc/self/smaps_rollup, which tells anonymous from shared memory",
            "Run this on Linux.",
            model=spec.model,
        )
    require_baseline(spec.model, spec.dense)
    created, started = datetime.now(UTC), time.perf_counter()
    condensed, dense = open_session(spec.model), open_session(spec.dense_path)
    shapes = input_shapes(spec.model, spec.dense_path, (spec.batch,), condensed, dense)
    del condensed, dense
    inputs = {
        name: [spec.batch if size is None else size for size in shape]
        for name, shape in shapes.items()
    }
    engines = []
    with tempfile.TemporaryDirectory(prefix="fanin-memory-") as folder:
        for number, name in enumerate(spec.engines):
            if progress:
                progress(name, number / len(spec.engines))
            engines.append(_measure(spec, name, inputs, Path(folder)))
    sessions = "1 session" if spec.sessions == 1 else f"{spec.sessions} sessions"
    fields = dataclasses.asdict(spec)
    del fields["deepsparse_python"]
    return MemoryResult(
        title=f"Memory of {spec.model.name}, {sessions}",
        created=created.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - started,
        spec={**fields, "model": spec.model.name, "dense": spec.dense_path.name},
        machine=describe_machine(),
        engines=tuple(engines),
    )


def _measure(
    spec: BenchMemorySpec, name: str, inputs: Mapping[str, Sequence[int]], folder: Path
) -> EngineMemory:
    path = {"condensed": spec.model, "structured": spec.structured_path}.get(name, spec.dense_path)
    if name == "structured" and not path.is_file():
        return EngineMemory(name, "", 0, (), (), f"there is no {path.name} beside the model")
    size = file_bytes(path)
    python, kind = (
        sys.executable,
        {"dense": "ort", "structured": "ort", "condensed": "fanin"}.get(name, name),
    )
    try:
        if name == "deepsparse":
            if not spec.deepsparse_python.is_file():
                raise UnsuitableError("DeepSparse's Python is not there; run make deepsparse-env")
            path = deepsparse_file(path, folder / "deepsparse.onnx").path
            python = str(spec.deepsparse_python.absolute())
        request = {
            "kind": kind,
            "model": str(path.absolute()),
            "sessions": spec.sessions,
            "threads": spec.threads,
            "inputs": inputs,
        }
        reply = _ask([python, str(_PROBE), json.dumps(request)])
    except UnsuitableError as error:
        return EngineMemory(name, "", size, (), (), str(error))
    start, *steps = reply["steps"]
    grown = {key: tuple(step[key] - start[key] for step in steps) for key in start}
    return EngineMemory(name, reply["version"], size, **grown)


def _ask(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "NM_DISABLE_ANALYTICS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnsuitableError(f"it took longer than {_LIMIT:.0f} s") from None
    if not done.stdout:
        last = (done.stderr.strip() or "it said nothing").split("\n")[-1]
        raise UnsuitableError(f"its process ended with status {done.returncode}: {last}")
    reply = json.loads(done.stdout)
    if "error" in reply:
        raise UnsuitableError(reply["error"])
    return reply
