"""A whole dense model in OpenVINO and DeepSparse, each in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....export.condensed import CondensedWeight
from ..engine import AbsentEngine, Engine
from . import deepsparse_forms, openvino_forms
from .remote import WORKER, Child, RemoteEngine

if TYPE_CHECKING:
    import onnx

_DEEPSPARSE_OPSET, _DEEPSPARSE_IR = 18, 8
"""The newest that DeepSparse 1.8 takes."""


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
        model = older_model(path, folder / "deepsparse.onnx")
    except UnsuitableError as error:
        return AbsentEngine(name, str(error))
    null = np.ones((16, 16), np.float32)
    child = Child(
        command=(str(python.absolute()), str(WORKER)),
        kind=name,
        layer={"model": str(model), "shape": list(inputs)},
        null=deepsparse_forms.save(folder / "deepsparse-null.onnx", "gemm", null, null[0], 1),
        columns=False,
        remedy=deepsparse_forms.REMEDY,
    )
    return RemoteEngine(name, f"{path.name}, as it takes it", child, threads, outputs)


class UnsuitableError(Exception):
    """A model that a runtime does not take."""


def older_model(path: Path, to: Path) -> Path:
    """Write the model in versions that DeepSparse reads; raises UnsuitableError."""
    import onnx

    model = onnx.load(path)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset > _DEEPSPARSE_OPSET:
        try:
            model = onnx.version_converter.convert_version(model, _DEEPSPARSE_OPSET)
        except Exception as error:  # the converter raises RuntimeError and its own kinds
            said = str(error).strip().split("\n")[0]
            raise UnsuitableError(
                f"DeepSparse 1.8 takes opset {_DEEPSPARSE_OPSET} at most, and {path.name}, of "
                f"opset {opset}, cannot be converted ({said}); export with --opset 17"
            ) from error
    model.ir_version = min(model.ir_version, _DEEPSPARSE_IR)
    _pool_means(model)
    onnx.save(model, to)
    return to


def _pool_means(model: onnx.ModelProto) -> None:
    """Make GlobalAveragePool of means over an image, as torch writes them.

    Behind a ReduceMean DeepSparse 1.8 takes no advantage of sparsity at all: ResNet-50 at 90 %
    takes 72 ms with one and 42 ms without (Cascade Lake).
    """
    from onnx import numpy_helper

    constants = {value.name: value for value in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "ReduceMean":
            continue
        given = {attribute.name: attribute for attribute in node.attribute}
        axes = list(given["axes"].ints) if "axes" in given else []
        if len(node.input) == 2 and node.input[1] in constants:
            axes = numpy_helper.to_array(constants[node.input[1]]).tolist()
        keeps = "keepdims" not in given or given["keepdims"].i == 1
        if sorted(axes) not in ([2, 3], [-2, -1]) or not keeps:
            continue
        node.op_type = "GlobalAveragePool"
        del node.attribute[:], node.input[1:]


def _one() -> CondensedWeight:
    one = np.ones((1, 1), np.float32)
    return CondensedWeight.from_dense(one, one[0])
