"""An engine in another process: the benchmark's end of worker.py's protocol."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ....._base.atomic import output_folder
from ....._base.user_folders import cache_folder
from .....ort_ops.format.condensed import CondensedWeight

_T = TypeVar("_T")

WORKER = Path(__file__).parents[1] / "child" / "worker.py"

# Longer than any model takes to compile; a process that hangs must not hang the benchmark.
_LIMIT = 900.0

_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class Child:
    """A process to start, and what it is asked to prepare.

    ``kind``, ``layer`` and ``null`` are of the worker's protocol. ``remedy`` says how to get the
    package that it misses. With ``columns`` the input goes to it as [in_features, batch] and the
    output comes back as [out_features, batch]. ``command`` starts a worker.
    """

    kind: str
    layer: Mapping[str, Any]
    null: Mapping[str, Any]
    remedy: str
    columns: bool = False
    command: tuple[str, ...] = (sys.executable, str(WORKER))


def null_layer() -> CondensedWeight:
    """Make a layer too small to matter, whose run is the cost of a call."""
    one = np.ones((1, 1), np.float32)
    return CondensedWeight.from_dense(one, one[0])


class RemoteEngine:
    """One float32 input to one output, computed and timed by a child process.

    ``output`` is the output's shape. A child with ``columns`` computes a layer, [batch, features].
    """

    def __init__(
        self,
        name: str,
        form: str,
        child: Child,
        threads: int,
        output: tuple[int, ...],
        *,
        precision: str = "float32",
    ):
        self.name = name
        self.form = form
        self.precision = precision
        self.version = ""
        self.threads = threads
        self.call_seconds: float | None = None
        self._child = child
        self._output = output
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._shared: np.memmap[Any, np.dtype[np.float32]] | None = None

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine. Raises RemoteError."""
        (self._input,) = inputs.values()
        self._folder = tempfile.TemporaryDirectory(prefix="fanin-peer-")
        folder = Path(self._folder.name)
        shape = self._input.T.shape if self._child.columns else self._input.shape
        self._shared = np.memmap(folder / "x", np.float32, "w+", shape=shape)
        with open(folder / "stderr", "wb") as stderr:
            self._process = subprocess.Popen(
                self._child.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=_environment(self._child.kind, self.threads, folder),
            )
        reply = self._ask(
            do="prepare",
            kind=self._child.kind,
            threads=self.threads,
            x=str(folder / "x"),
            layer=dict(self._child.layer),
            null=dict(self._child.null),
        )
        self.version, self.threads = reply["version"], reply["threads"]
        self.call_seconds = reply["call_seconds"]

    def run(self) -> None:
        """See Engine."""
        self.time_runs(0, 1)

    def time_runs(
        self, lead_in: float, count: int, numbers: Sequence[float] = (), condition: str = ""
    ) -> Sequence[int]:
        """See SelfTimedEngine."""
        content = self._input.T if self._child.columns else self._input
        shared = _prepared(self._shared)
        if not np.array_equal(shared, content):
            shared[...] = content
        request = {"lead_in": lead_in, "count": count, "numbers": numbers, "condition": condition}
        nanoseconds: list[int] = self._ask(do="run", **request)["nanoseconds"]
        return nanoseconds

    def output(self) -> Sequence[np.ndarray]:
        """See Engine. An output of an unexpected size is returned as it came."""
        file = Path(_prepared(self._folder).name) / "y"
        reply = self._ask(do="output", file=str(file))
        y = np.fromfile(file, reply["dtype"]).reshape(reply["shape"])
        if y.size == math.prod(self._output):
            columns = self._child.columns
            y = y.reshape(self._output[::-1]).T if columns else y.reshape(self._output)
        return [y]

    def close(self) -> None:
        """See Engine. Ends the process."""
        if self._process is not None:
            try:
                self._process.communicate(timeout=5)  # closes stdin, which ends a sound worker
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        if self._folder is not None:
            self._shared = None
            self._folder.cleanup()

    def _ask(self, **request: Any) -> dict[str, Any]:
        process = _prepared(self._process)
        requests, replies = _prepared(process.stdin), _prepared(process.stdout)
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(_LIMIT, end)
        timer.start()
        try:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            line = replies.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line and late.is_set():
            raise RemoteError(f"it took longer than {_LIMIT:g} s to {request['do']}")
        if not line:
            raise RemoteError(self._exit_reason(process))
        reply: dict[str, Any] = json.loads(line)
        if "missing" in reply:
            raise RemoteError(f"{reply['error']}; {self._child.remedy}")
        if "error" in reply:
            raise RemoteError(reply["error"])
        return reply

    def _exit_reason(self, process: subprocess.Popen[str]) -> str:
        status = process.wait()
        folder = Path(_prepared(self._folder).name)
        said = (folder / "stderr").read_text(errors="replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "it said nothing")
        return f"its process ended with status {status}: {last.strip()}"


class RemoteError(RuntimeError):
    """The child process could not do what it was asked."""


def _prepared(part: _T | None) -> _T:
    """Return what ``prepare`` makes."""
    if part is None:
        raise RemoteError("the engine is not prepared; call prepare first")
    return part


def _environment(kind: str, threads: int, scratch: Path) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    cache = {}
    if kind.startswith("torch") and _TORCH_CACHE not in os.environ:
        cache = {_TORCH_CACHE: str(_compiled_layers(scratch))}
    # DeepSparse reports its use over the network when imported, unless told not to.
    fixed = {**dict.fromkeys(names, str(threads)), "NM_DISABLE_ANALYTICS": "1"}
    return {**cache, **os.environ, **fixed}


def _compiled_layers(scratch: Path) -> Path:
    """Say where later runs find compiled layers again, even when the system has emptied /tmp."""
    cache = cache_folder()
    try:
        if cache is None:
            raise OSError("this user has no home folder")
        return output_folder(cache / "torchinductor")
    except OSError as error:
        warnings.warn(f"compiled layers are not kept for later runs: {error}", stacklevel=2)
        return scratch / "torchinductor"
