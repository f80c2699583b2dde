"""A whole dense model in OpenVINO and DeepSparse, each in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from .....export.condensed import CondensedWeight
from ..protocol import AbsentEngine, Engine
from . import deepsparse_forms, openvino_forms
from .deepsparse_model import UnsuitableError, deepsparse_file
from .remote import WORKER, Child, RemoteEngine


def openvino_model(
    path: Path, inputs: tuple[int, ...], outputs: tuple[int, ...], threads: int, folder: Path
) -> Engine:
    """Run the model of one input and one output, of these shapes, in float32."""
    child = Child(
        command=(sys.executable, str(WORKER)),
        kind="openvino",
        layer={"model": str(path.absolute()), "shape": list(inputs), "precision": "f32"},
        null=openvino_forms.save(_one(), 1, folder / "openvino-null.onnx"),
        columns=False,
        remedy=openvino_forms.REMEDY,
    )
    return RemoteEngine("openvino", f"{path.name}, precision f32", child, threads, outputs)


def deepsparse_model(
    path: Path,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    threads: int,
    folder: Path,
    python: Path,
) -> Engine:
    """Run the model under ``python``; absent without it, or without a version that it takes.

    The weights in the file are as sparse as ours, which is all that DeepSparse needs to know.
    """
    name = deepsparse_forms.FAMILY
    if not python.is_file():
        reason = f"DeepSparse's Python is not there; {deepsparse_forms.REMEDY}"
        return AbsentEngine(name, reason)
    try:
        model = deepsparse_file(path, folder / "deepsparse.onnx")
    except UnsuitableError as error:
        return AbsentEngine(name, str(error))
    null = np.ones((16, 16), np.float32)
    child = Child(
        command=(str(python.absolute()), str(WORKER)),
        kind=name,
        layer={"model": str(model.path), "shape": list(inputs)},
        null=deepsparse_forms.save(folder / "deepsparse-null.onnx", "gemm", null, null[0], 1),
        columns=False,
        remedy=deepsparse_forms.REMEDY,
    )
    return RemoteEngine(name, f"{path.name}, {model}", child, threads, outputs)


def _one() -> CondensedWeight:
    one = np.ones((1, 1), np.float32)
    return CondensedWeight.from_dense(one, one[0])
