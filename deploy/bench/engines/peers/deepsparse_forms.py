"""The layer in the graph forms that DeepSparse compiles differently.

On Zen 4 at batch 1 and 16 it runs sparse Gemm and MatMul no faster than dense ones, but the same
weights as a 1x1 convolution faster; quoting one form would be unfair to it. All forms are timed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .....export.condensed import CondensedWeight
from ..protocol import AbsentEngine, Engine
from .remote import WORKER, Child, RemoteEngine

FAMILY = "deepsparse"
DEEPSPARSE_PYTHON = Path(".cache/deepsparse-venv/bin/python")
"""Where ``make deepsparse-env`` puts it, in the working directory."""

REMEDY = "run make deepsparse-env in a checkout of fanin, or pass --deepsparse-python"

# DeepSparse 1.8 refuses newer ones.
_OPSET, _IR_VERSION = 13, 7
_NULL_FEATURES = 16

_FORMS = {
    "gemm": "Gemm(transB=1)",
    "matmul": "MatMul, Add",
    "conv": "Conv 1x1 on [batch, in, 1, 1]",
    "spatial": "Conv 1x1 on [1, in, 1, batch]: input and output transposed, which is not timed",
}


def deepsparse_engines(
    weight: CondensedWeight, batch: int, threads: int, folder: Path, python: Path
) -> list[Engine]:
    """Write the models of all forms into ``folder``; engines that run them under ``python``.

    At batch 1 the two convolutions are the same, so there are three. Without the interpreter there
    is one engine, which is excluded with the reason.
    """
    if not python.is_file():
        return [AbsentEngine(FAMILY, f"DeepSparse's Python is not there; {REMEDY}")]
    dense, bias = weight.to_dense(), weight.bias
    null = np.ones((_NULL_FEATURES, _NULL_FEATURES), np.float32)
    engines: list[Engine] = []
    for form, text in _FORMS.items():
        if form == "spatial" and batch == 1:
            continue
        paths = [folder / f"deepsparse-{form}{suffix}.onnx" for suffix in ("", "-null")]
        child = Child(
            # No symlink is followed: an environment's interpreter finds its packages by its path.
            command=(str(python.absolute()), str(WORKER)),
            kind=FAMILY,
            layer=save(paths[0], form, dense, bias, batch),
            null=save(paths[1], form, null, null[0], 1),
            columns=form == "spatial",
            remedy=REMEDY,
        )
        engines.append(
            RemoteEngine(f"{FAMILY}-{form}", text, child, threads, (batch, weight.out_features))
        )
    return engines


def save(path: Path, form: str, weight: np.ndarray, bias: np.ndarray, batch: int) -> dict:
    """Write x -> y in that form; returns the worker's description of it."""
    import onnx
    from onnx import helper

    features = weight.shape[::-1]
    if form == "gemm":
        nodes = [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)]
    elif form == "matmul":
        weight = np.ascontiguousarray(weight.T)
        nodes = [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["y"]),
        ]
    else:
        weight = weight[:, :, None, None]
        nodes = [helper.make_node("Conv", ["x", "weight", "bias"], ["y"], kernel_shape=[1, 1])]

    def shape(width: int) -> list[int]:
        tails = {"conv": [batch, width, 1, 1], "spatial": [1, width, 1, batch]}
        return tails.get(form, [batch, width])

    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape(width))
        for name, width in zip("xy", features, strict=True)
    ]
    constants = [
        onnx.numpy_helper.from_array(weight, "weight"),
        onnx.numpy_helper.from_array(bias, "bias"),
    ]
    graph = helper.make_graph(nodes, form, ports[:1], ports[1:], constants)
    opsets = [helper.make_opsetid("", _OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), path)
    return {"model": str(path), "shape": shape(features[0])}
