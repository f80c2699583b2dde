"""The null session: everything that session.run costs besides the layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..requirements import require
from .onnx_models import build_model


def save_null_model(path: Path, batch: int, in_features: int, out_features: int) -> str:
    """Write a model that makes an output of the layer's shape with one cheap node.

    x [batch, in_features] float32 becomes y [batch, out_features] by cutting columns off (Slice),
    adding zeros (Pad), or negation (Neg) when the widths are equal. y depends on x, so the runtime
    cannot fold it into a constant. The node copies batch * out_features floats, which the layer's
    kernel also has to write. Returns the name of the operator.
    """
    onnx = require("onnx", "the benchmark makes its models with it")
    if out_features == in_features:
        form, arguments = "Neg", {}  # a Slice of everything is optimised away
    elif out_features < in_features:
        form, arguments = "Slice", {"starts": [0], "ends": [out_features], "axes": [1]}
    else:
        form, arguments = "Pad", {"pads": [0, 0, 0, out_features - in_features]}
    node = onnx.helper.make_node(form, ["x", *arguments], ["y"], name="null")
    constants = {name: np.array(value, np.int64) for name, value in arguments.items()}
    onnx.save(build_model([node], (batch, in_features), (batch, out_features), constants), path)
    return form
