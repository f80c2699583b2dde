"""The dense layer in OpenVINO's CPU plugin, held to float32."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ....export.condensed import CondensedWeight
from ..engine import Engine
from .remote import WORKER, Child, RemoteEngine

REMEDY = "run: pip install openvino"


def openvino_engine(weight: CondensedWeight, batch: int, threads: int, folder: Path) -> Engine:
    """Make the engine; its models go into ``folder``.

    Without a hint the plugin computes in bfloat16 where the CPU has it, so float32 is asked for and
    what is in force is checked.
    """
    one = np.ones((1, 1), np.float32)
    child = Child(
        command=(sys.executable, str(WORKER)),
        kind="openvino",
        layer=save(weight, batch, folder / "openvino.onnx"),
        null=save(CondensedWeight.from_dense(one, one[0]), 1, folder / "openvino-null.onnx"),
        columns=False,
        remedy=REMEDY,
    )
    form = "Gemm(transB=1), inference precision f32"
    return RemoteEngine("openvino", form, child, threads, (batch, weight.out_features))


def save(weight: CondensedWeight, batch: int, path: Path) -> dict:
    """Write the layer's model; returns the worker's description of it."""
    import onnx

    from ....export.onnx_op import dense_layer_model

    onnx.save(dense_layer_model(weight, batch), path)
    return {"model": str(path), "shape": [batch, weight.in_features], "precision": "f32"}
