"""The dense layer in OpenVINO's CPU plugin, held to float32 or left to its default."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from .....export.condensed import CondensedWeight
from ..protocol import Engine
from .remote import WORKER, Child, RemoteEngine

REMEDY = "run: pip install openvino"


def openvino_engine(
    name: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> Engine:
    """Make the engine ``openvino`` or ``openvino-default``; its models go into ``folder``.

    Without a hint the plugin computes in bfloat16 where the CPU has it. That is the default's
    engine, whose version says what is in force; for the other one float32 is asked for and what is
    in force is checked.
    """
    one = np.ones((1, 1), np.float32)
    precision = "f32" if name == "openvino" else None
    child = Child(
        command=(sys.executable, str(WORKER)),
        kind="openvino",
        layer=save(weight, batch, folder / f"{name}.onnx", precision),
        null=save(
            CondensedWeight.from_dense(one, one[0]), 1, folder / f"{name}-null.onnx", precision
        ),
        columns=False,
        remedy=REMEDY,
    )
    form = f"Gemm(transB=1), inference precision {precision or 'left to it'}"
    return RemoteEngine(
        name,
        form,
        child,
        threads,
        (batch, weight.out_features),
        precision="float32" if precision else "bfloat16",
    )


def save(
    weight: CondensedWeight, batch: int, path: Path, precision: str | None = "f32"
) -> dict[str, Any]:
    """Write the layer's model; returns the worker's description of it."""
    import onnx

    from .....export.onnx_op import dense_layer_model

    onnx.save(dense_layer_model(weight, batch), path)
    return {"model": str(path), "shape": [batch, weight.in_features], "precision": precision}
