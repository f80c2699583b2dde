"""A dense layer or a model in OpenVINO's CPU plugin, held to float32 or left to its default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .....ort_ops.format.condensed import CondensedWeight
from ..protocol import Engine
from .dense_forms import save_dense_form
from .remote import Child, RemoteEngine, null_layer

_REMEDY = "run: pip install openvino"


def openvino_engine(
    name: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> Engine:
    """Make the engine ``openvino`` or ``openvino-default``; its models go into ``folder``.

    Without a hint the plugin computes in bfloat16 where the CPU has it. That is the default's
    engine, whose version says what is in force; for the other one float32 is asked for and what is
    in force is checked.
    """
    precision = "f32" if name == "openvino" else None
    layer = save_dense_form(folder / f"{name}.onnx", "gemm", weight.to_dense(), weight.bias, batch)
    return RemoteEngine(
        name,
        f"Gemm(transB=1), inference precision {precision or 'left to it'}",
        _child(layer, precision, folder / f"{name}-null.onnx"),
        threads,
        (batch, weight.out_features),
        precision="float32" if precision else "bfloat16",
    )


def openvino_model(
    path: Path, inputs: tuple[int, ...], outputs: tuple[int, ...], threads: int, folder: Path
) -> Engine:
    """Run the model of one input and one output, of these shapes, in float32."""
    layer = {"model": str(path.absolute()), "shape": list(inputs)}
    child = _child(layer, "f32", folder / "openvino-null.onnx")
    return RemoteEngine("openvino", f"{path.name}, precision f32", child, threads, outputs)


def _child(layer: Mapping[str, Any], precision: str | None, null: Path) -> Child:
    one = null_layer()
    return Child(
        kind="openvino",
        layer={**layer, "precision": precision},
        null={
            **save_dense_form(null, "gemm", one.to_dense(), one.bias, 1),
            "precision": precision,
        },
        remedy=_REMEDY,
    )
