"""Schemas of operators that ONNX Runtime has in the standard domain although onnx does not.

Files of onnxruntime-genai's builder and of ONNX Runtime's optimizer contain them. Without a schema
onnx's checker refuses such a file, and shapes are lost behind the node.
"""

from __future__ import annotations

import atexit

import onnx
from onnx import defs, helper

SIMPLIFIED_LAYER_NORMALIZATION = "SimplifiedLayerNormalization"

_FLOATS = ["tensor(float16)", "tensor(float)", "tensor(double)", "tensor(bfloat16)"]


def register_contrib_schemas() -> None:
    """Make them known to onnx; twice does nothing, nor does an onnx that has them."""
    if defs.has(SIMPLIFIED_LAYER_NORMALIZATION):
        return
    defs.register_schema(_simplified_layer_normalization())
    # The registry outlives the interpreter, the Python function in the schema does not.
    atexit.register(defs.deregister_schema, SIMPLIFIED_LAYER_NORMALIZATION, 1, "")


def _simplified_layer_normalization() -> defs.OpSchema:
    parameter, attribute = defs.OpSchema.FormalParameter, defs.OpSchema.Attribute
    optional = defs.OpSchema.FormalParameterOption.Optional
    defaults = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    schema = defs.OpSchema(
        SIMPLIFIED_LAYER_NORMALIZATION,
        "",
        1,
        doc="Y = X / sqrt(mean of X * X over the axes from axis on + epsilon) * scale.",
        inputs=[parameter("X", "T"), parameter("scale", "V")],
        outputs=[
            parameter("Y", "V"),
            parameter("inv_std_var", "U", param_option=optional),
        ],
        type_constraints=[(name, _FLOATS, "") for name in ("T", "U", "V")],
        attributes=[
            attribute(name, helper.make_attribute(name, value), "")
            for name, value in defaults.items()
        ],
    )
    schema.set_type_and_shape_inference_function(_infer_normalization)
    return schema


def _infer_normalization(ctx: onnx.shape_inference.InferenceContext) -> None:
    """Give Y the shape of X and the type of the scale."""
    x, scale = ctx.get_input_type(0), ctx.get_input_type(1)
    if x is None or scale is None or not scale.HasField("tensor_type"):
        return
    y = onnx.TypeProto()
    y.CopyFrom(x)
    y.tensor_type.elem_type = scale.tensor_type.elem_type
    ctx.set_output_type(0, y)
