"""A whole model in other runtimes, each engine in a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..protocol import Engine, UnavailableEngine
from .child_process import NO_DEEPSPARSE, REMEDIES, worker_command
from .deepsparse_model import UnsupportedModelError, deepsparse_file
from .dense_forms import save_dense_form
from .remote import Child, RemoteEngine


def peer_model(
    kind: str,
    path: Path,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    threads: int,
    folder: Path,
    deepsparse_python: Path,
) -> Engine:
    """Run a model of one input and one output, of these shapes, in OpenVINO or DeepSparse.

    The weights in the file are as sparse as ours, which is all that DeepSparse needs to know.
    Returns an unavailable engine without DeepSparse, or where it cannot read the model.
    """
    form, more = f"{path.name}, precision f32", {"precision": "f32"}
    if kind == "deepsparse":
        if not deepsparse_python.is_file():
            return UnavailableEngine(kind, NO_DEEPSPARSE)
        copy = folder / "deepsparse.onnx"
        try:
            form, more = f"{path.name}, {deepsparse_file(path, copy)}", {}
        except UnsupportedModelError as error:
            return UnavailableEngine(kind, str(error))
        path = copy
    null = np.ones((16, 16), np.float32)
    child = Child(
        kind=kind,
        layer={"model": str(path.absolute()), "shape": list(inputs), **more},
        null={**save_dense_form(folder / f"{kind}-null.onnx", "gemm", null, null[0], 1), **more},
        remedy=REMEDIES[kind],
        command=worker_command(kind, deepsparse_python),
    )
    return RemoteEngine(kind, form, child, threads, outputs)
