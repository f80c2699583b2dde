"""An engine in another process, which times its own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..protocol import BaseEngine
from ..quantized_layer import Grid
from .child_process import ChildProcess, RemoteError


@dataclass(frozen=True)
class Child:
    """A process to start, and what it is asked to prepare.

    Attributes:
        kind, layer, null: of the worker's protocol.
        remedy: how to install the package, for the error when it is missing.
        columns: the input goes to it as [in_features, batch], and the output comes back as
            [out_features, batch].
        command: starts a worker.

    """

    kind: str
    layer: Mapping[str, Any]
    null: Mapping[str, Any]
    remedy: str
    columns: bool = False
    command: tuple[str, ...] = field(kw_only=True)


class RemoteEngine(BaseEngine):
    """One float32 input to one output, computed and timed by a child process.

    ``output`` is the output's shape. A child with ``columns`` computes a layer, [batch, features].
    With ``grids``, of input and output, the child gets uint8 numbers, and its output is taken for
    uint8 numbers where it is not float32; converting them is not timed.
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
        grids: tuple[Grid, Grid] | None = None,
    ):
        super().__init__(name, form, threads, precision)
        self._child = child
        self._grids = grids
        self._output = output
        self._process: ChildProcess | None = None
        self._shared: np.memmap[Any, np.dtype[Any]] | None = None

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine. Raises RemoteError."""
        x = next(iter(inputs.values()))
        self._input = x.T if self._child.columns else x
        child = self._child
        self._process = ChildProcess(child.kind, self.threads, child.remedy, child.command)
        file = self._process.folder / "x"
        self._shared = np.memmap(
            file, np.uint8 if self._grids else np.float32, "w+", shape=self._input.shape
        )
        reply = self._process.ask(
            "prepare",
            kind=child.kind,
            threads=self.threads,
            x=str(file),
            layer=dict(child.layer),
            null=dict(child.null),
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
        process = self._started()
        x = self._numbers(self._input)
        if self._shared is not None and not np.array_equal(self._shared, x):
            self._shared[...] = x
        if numbers:
            numbers = self._numbers(np.array(numbers, np.float32)).tolist()
        request = {"lead_in": lead_in, "count": count, "numbers": numbers, "condition": condition}
        nanoseconds: list[int] = process.ask("run", **request)["nanoseconds"]
        return nanoseconds

    def output(self) -> Sequence[np.ndarray]:
        """See Engine. An output of an unexpected size is returned as it came."""
        process = self._started()
        file = process.folder / "y"
        reply = process.ask("output", file=str(file))
        y = np.fromfile(file, reply["dtype"]).reshape(reply["shape"])
        if self._grids and y.dtype == np.uint8:
            y = self._grids[1].dequantize(y)
        if y.size == math.prod(self._output):
            columns = self._child.columns
            y = y.reshape(self._output[::-1]).T if columns else y.reshape(self._output)
        return [y]

    def close(self) -> None:
        """See Engine. Ends the process."""
        self._shared = None
        if self._process is not None:
            self._process.close()

    def _numbers(self, x: np.ndarray) -> np.ndarray:
        """Return the input as the child reads it."""
        return self._grids[0].quantize(x) if self._grids else x

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise RemoteError("the engine is not prepared; call prepare first")
        return self._process
