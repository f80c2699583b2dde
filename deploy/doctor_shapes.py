"""Runs the model named in argv once for each batch and prints what shapes its condensed nodes see.

Runs in a separate process, which contains crashes. The shapes come from ONNX Runtime's profiler:
those in the file may be open or missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..ort_ops.contract import OPS
from .diagnosis import plain
from .errors import SessionError
from .input_types import numpy_type
from .runtime import load_onnxruntime
from .session import open_session

_NODE_SUFFIX = "_kernel_time"


def main() -> None:
    """Print {"problem", "remedy"}, or {"shapes": {batch: {node: shape of X}}}."""
    model, batches, *libraries = sys.argv[1:]
    result: dict[str, Any]
    try:
        shapes: dict[int, dict[str, list[int]]] = {}
        for batch in map(int, batches.split(",")):
            found, batch_in_force = _shapes(Path(model), batch, libraries)
            shapes[batch_in_force] = found
        result = {"shapes": shapes}
    except SessionError as error:
        result = {"problem": error.problem, "remedy": error.remedy}
    print(json.dumps(result))


def _shapes(model: Path, batch: int, libraries: list[str]) -> tuple[dict[str, list[int]], int]:
    """Run the model on zeros; returns the shapes, and the batch, which the model may fix."""
    options = load_onnxruntime().SessionOptions()
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="fanin-doctor-") as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = open_session(model, threads=1, options=options, custom_op_libraries=libraries)
        inputs = {meta.name: _zeros(meta, batch) for meta in session.get_inputs()}
        try:
            session.run(None, inputs)
        except Exception as error:  # the runtime's exceptions share no base class
            raise SessionError(
                f"it does not run on zeros of batch {batch}: {plain(str(error))}",
                "Plan for another --batch.",
                model=model,
            ) from error
        events = json.loads(Path(session.end_profiling()).read_text())
    fixed = [array.shape[0] for array in inputs.values() if array.ndim]
    return _condensed_shapes(events), fixed[0] if fixed else batch


def _zeros(meta: Any, batch: int) -> np.ndarray:
    shape = [size if isinstance(size, int) else None for size in meta.shape]
    if None in shape[1:]:
        raise SessionError(
            f"input '{meta.name}' has the shape {meta.shape}; a plan needs all sizes but the batch",
            "Export the model with fixed sizes for them.",
        )
    dtype = numpy_type(meta.type)
    if dtype is None:
        raise SessionError(
            f"input '{meta.name}' is a {meta.type}, which the doctor cannot make",
            "Export the model with inputs of numbers.",
        )
    return np.zeros([batch if size is None else size for size in shape], dtype)


def _condensed_shapes(events: list[dict[str, Any]]) -> dict[str, list[int]]:
    found = {}
    for event in events:
        arguments = event.get("args", {})
        shapes = arguments.get("input_type_shape")
        if arguments.get("op_name") in OPS and shapes and event["name"].endswith(_NODE_SUFFIX):
            (shape,) = shapes[0].values()
            found[event["name"].removesuffix(_NODE_SUFFIX)] = shape
    return found


if __name__ == "__main__":
    main()
