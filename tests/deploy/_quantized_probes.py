"""The models of the doctor's probes of the ops on 8-bit integers, built with onnx."""

from __future__ import annotations

import numpy as np
import onnx

from fanin.deploy.probe_model import probe_layers
from fanin.ort_ops.contract import INPUTS
from fanin.ort_ops.format.condensed import CondensedWeight
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ..ort_ops._quantized import DYNAMIC, QLINEAR_CONV, QLINEAR_GEMM, TO_FLOAT, Node

GEOMETRY = ConvGeometry(2, 3, (2, 2), strides=(1, 2), pads=(0, 1, 1, 0))
UNIT = 0.25  # of every weight


def probe_node(op: str, x: np.ndarray) -> Node:
    """The node of a probe: the layers of probe_layers() with weights in quarters."""
    layer = probe_layers()[op == QLINEAR_CONV]
    weight = CondensedWeight.from_dense(*layer)
    bias = weight.bias
    arrays = {
        "X": x,
        "x_scale": np.float32(0.5),
        "x_zero_point": np.asarray(3, x.dtype),
        "values": (weight.values / UNIT).astype(np.int8),
        "values_scale": np.full(1, UNIT, np.float32),
        "indices": weight.indices,
        "bias": bias,
        "rows": weight.rows,
        "y_scale": np.float32(0.125),
        "y_zero_point": np.int8(-5),
        "residual": np.zeros(1, np.float32),
        "residual_scale": np.float32(1),
        "residual_zero_point": np.int8(0),
    }
    if op in (QLINEAR_GEMM, QLINEAR_CONV):
        arrays["bias"] = (bias / (0.5 * UNIT)).astype(np.int32)
        arrays["residual"] = np.zeros(1, np.int8)
    sizes = {"in_features": weight.in_features, "out_features": weight.out_features}
    attributes = {
        QLINEAR_GEMM: sizes,
        QLINEAR_CONV: {**GEOMETRY.attributes(), "channels_last": 1},
        TO_FLOAT: sizes,
        DYNAMIC: {**sizes, "per_row": 1},
    }[op]
    return Node(op, {name: np.asarray(arrays[name]) for name in INPUTS[op]}, attributes)


def probe_model(op: str, x: np.ndarray) -> onnx.ModelProto:
    """The model with the names of a probe, and a symbolic batch."""
    node = probe_node(op, x)
    model = node.build(x_shape=["batch", *x.shape[1:]])
    expected = node.having(clip_min=-np.inf, clip_max=np.inf).expected()
    (made,) = model.graph.node
    made.name, made.input[0], made.output[0] = "layer", "x", "y"
    model.graph.input[0].name, model.graph.output[0].name = "x", "y"
    dims = model.graph.output[0].type.tensor_type.shape.dim
    for dim, size in zip(dims, ["batch", *expected.shape[1:]], strict=True):
        dim.Clear()
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = size
    return model
