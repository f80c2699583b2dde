"""The null session: everything that session.run costs besides the layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..requirements import require


def save_null_model(path: Path, batch: int, in_features: int, out_features: int) -> str:
    """Write a model that makes an output of the layer's shape with one cheap node.

    x [batch, in_features] float32 becomes y [batch, out_features] by cutting columns off (Slice),
    adding zeros (Pad), or negation (Neg) when the widths are equal. y depends on x, so the runtime
    cannot fold it into a constant. The node copies batch * out_features floats, which the layer's
    kernel also has to write. Returns the name of the operator.
    """
    onnx = require("onnx", "the benchmark makes its models with it")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    if out_features == in_features:
        form, arguments = "Neg", {}  # a Slice of everything is optimised away
    elif out_features < in_features:
        form = "Slice"
        arguments = {"starts": [0], "ends": [out_features], "axes": [1]}
    else:
        form = "Pad"
        arguments = {"pads": [0, 0, 0, out_features - in_features]}
    graph = helper.make_graph(
        [helper.make_node(form, ["x", *arguments], ["y"], name="null")],
        "null",
        [helper.make_tensor_value_info("x", float32, [batch, in_features])],
        [helper.make_tensor_value_info("y", float32, [batch, out_features])],
        [
            onnx.numpy_helper.from_array(np.array(value, np.int64), name)
            for name, value in arguments.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, path)
    return form
