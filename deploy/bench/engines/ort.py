"""ONNX Runtime as an engine: any model file, with or without fanin's op library."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...model_check import checked_content, safe_arguments
from ...runtime import load_onnxruntime
from ...session import open_session
from .protocol import BaseEngine
from .quantized_layer import Grid

_NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}

_LOOK_SECONDS, _PATIENCE_SECONDS = 0.002, 2.0


class OrtEngine(BaseEngine):
    """A model file in ONNX Runtime on the CPU, run through an IOBinding.

    Inputs are bound in place and outputs are allocated once, so that a run allocates nothing in
    Python. With ``library`` the session is the one that open_session makes; without it, the
    session has the same options and stock operators only. ``entries`` are session config entries.
    With ``y_grid`` the session's outputs are uint8, and ``output`` returns what they stand for.
    """

    def __init__(
        self,
        name: str,
        form: str,
        path: Path,
        threads: int,
        *,
        library: bool,
        precision: str = "float32",
        entries: Mapping[str, str] = MappingProxyType({}),
        y_grid: Grid | None = None,
    ):
        super().__init__(name, form, threads, precision)
        self.path = path
        self._library = library
        self._entries = entries
        self._y_grid = y_grid
        self._session: Any = None
        self._binding: Any = None
        self._outputs: list[Any] = []

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine. Raises SessionError, or RuntimeError for what cannot be bound."""
        runtime = load_onnxruntime()
        self.version = f"onnxruntime {runtime.__version__}"
        before = os_threads()
        options = runtime.SessionOptions()
        for key, value in self._entries.items():
            options.add_session_config_entry(key, value)
        self._session = open_model(self.path, self.threads, options, library=self._library)
        if before is not None:
            # The pool, and the thread that calls run.
            self.threads = 1 + count_new_threads(before, self.threads - 1)
        self._binding = self._session.io_binding()
        sizes = self._bind_inputs(runtime, inputs)
        self._bind_outputs(runtime, sizes)

    def run(self) -> None:
        """See Engine."""
        self._session.run_with_iobinding(self._binding)

    def output(self) -> Sequence[np.ndarray]:
        """See Engine."""
        outputs = [value.numpy() for value in self._outputs]
        return [self._y_grid.dequantize(one) for one in outputs] if self._y_grid else outputs

    def close(self) -> None:
        """See Engine."""
        self._outputs = []
        self._binding = self._session = None

    def _bind_inputs(self, runtime: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Bind the caller's arrays; returns the sizes that they give to symbolic dimensions."""
        sizes: dict[str, int] = {}
        for meta in self._session.get_inputs():
            if meta.name not in inputs:
                raise RuntimeError(f"the model needs an input '{meta.name}', which is not given")
            array = inputs[meta.name]
            value = runtime.OrtValue.ortvalue_from_numpy(array)
            if value.data_ptr() != array.ctypes.data:
                raise RuntimeError(f"input '{meta.name}' was copied, not bound in place")
            self._binding.bind_ortvalue_input(meta.name, value)
            sizes.update(
                (symbol, size)
                for symbol, size in zip(meta.shape, array.shape, strict=True)
                if isinstance(symbol, str)
            )
        return sizes

    def _bind_outputs(self, runtime: Any, sizes: dict[str, int]) -> None:
        for meta in self._session.get_outputs():
            shape = [sizes.get(size, size) for size in meta.shape]
            if not all(isinstance(size, int) for size in shape):
                raise RuntimeError(
                    f"output '{meta.name}' has the shape {meta.shape}, which the inputs' shapes do "
                    "not determine"
                )
            dtype = _NUMPY_TYPES.get(meta.type)
            if dtype is None:
                raise RuntimeError(f"output '{meta.name}' is a {meta.type}, which is not supported")
            value = runtime.OrtValue.ortvalue_from_shape_and_type(shape, dtype)
            self._binding.bind_ortvalue_output(meta.name, value)
            self._outputs.append(value)


def open_model(path: Path, threads: int, options: Any = None, *, library: bool) -> Any:
    """Open a model as open_session does; without ``library`` in stock ONNX Runtime, on the CPU.

    Raises:
        SessionError: the file must not be opened; else whatever the runtime raises.

    """
    runtime = load_onnxruntime()
    if library:
        return open_session(path, threads=threads, options=options)
    content = checked_content(path)
    if options is None:
        options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    return runtime.InferenceSession(
        str(path),
        sess_options=options,
        providers=["CPUExecutionProvider"],
        **safe_arguments(content),
    )


def count_new_threads(before: Set[int], expected: int) -> int:
    """Count the threads of this process that did not exist ``before``.

    While there are more than ``expected`` it looks again for two seconds: a finished thread stays
    listed until the system removes it, and packing a layer starts some.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while len(new := (os_threads() or set()) - before) > expected and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return len(new)


def os_threads() -> set[int] | None:
    """Return the ids of this process's threads; None without /proc."""
    try:
        return set(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return None
