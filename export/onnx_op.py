"""ONNX models and nodes with ``ai.fanin::CondensedGemm``.

Every file that fanin writes is of :data:`IR_VERSION`, imports :data:`DOMAIN` and carries the
function of each op it uses, so that it loads where the library is absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from .condensed import CondensedWeight
from .onnx_function import OPSETS, clip_is_open, condensed_gemm_function
from .onnx_schema import CONDENSED_GEMM, DOMAIN, DOMAIN_VERSION, register_schemas

__all__ = [
    "CONDENSED_GEMM",
    "DEFAULT_OPSET",
    "DOMAIN",
    "DOMAIN_VERSION",
    "IR_VERSION",
    "OPSETS",
    "condensed_gemm_function",
    "condensed_layer_model",
    "dense_layer_model",
    "make_condensed_node",
    "no_residual",
    "register_schemas",
]

IR_VERSION = 9
"""The newest one that onnxruntime 1.17 loads."""

DEFAULT_OPSET = 20


def no_residual(dtype: str = "float32") -> np.ndarray:
    """Return what the residual input holds where nothing is added: ``[1]``, 0, in the type of X."""
    return np.zeros(1, dtype)


def make_condensed_node(
    inputs: Sequence[str],
    output: str,
    *,
    in_features: int,
    out_features: int,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    name: str = "",
) -> NodeProto:
    """Build a node; ``inputs`` are names in the order of ``onnx_schema.INPUTS_GEMM``."""
    return helper.make_node(
        CONDENSED_GEMM,
        list(inputs),
        [output],
        name=name,
        domain=DOMAIN,
        in_features=in_features,
        out_features=out_features,
        clip_min=float(clip_min),
        clip_max=float(clip_max),
    )


def condensed_layer_model(
    weight: CondensedWeight,
    batch: int | None,
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    with_residual: bool = False,
    x_dtype: str = "float32",
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Build a model of one condensed layer, for tests and benchmarks.

    Its input is ``x`` ``[batch, in_features]``, with ``with_residual`` also ``residual``
    ``[batch, out_features]``; its output is ``y`` ``[batch, out_features]``; all of ``x_dtype``,
    "float32" or "float16". The weights keep the type that ``weight`` has. A batch of None is the
    symbolic dimension "batch". The node is called ``layer``.

    Raises:
        ValueError: another ``x_dtype``.

    """
    if x_dtype not in ("float32", "float16"):
        raise ValueError(f"x_dtype is {x_dtype!r}, it must be float32 or float16")
    arrays = {
        "values": weight.values,
        "indices": weight.indices,
        "bias": weight.bias,
        "rows": weight.rows,
    }
    if not with_residual:
        arrays["residual"] = no_residual(x_dtype)
    node = make_condensed_node(
        ["x", "values", "indices", "bias", "rows", "residual"],
        "y",
        in_features=weight.in_features,
        out_features=weight.out_features,
        clip_min=clip_min,
        clip_max=clip_max,
        name="layer",
    )
    graph = _layer_graph("condensed_layer", weight, batch, [node], arrays, with_residual, x_dtype)
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[
            helper.make_opsetid("", opset),
            helper.make_opsetid(DOMAIN, DOMAIN_VERSION),
        ],
        functions=[condensed_gemm_function(opset)],
        producer_name="fanin",
    )


def dense_layer_model(
    weight: CondensedWeight,
    batch: int | None,
    *,
    clip_min: float = -math.inf,
    clip_max: float = math.inf,
    with_residual: bool = False,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Build the same layer as a dense graph holds it: Gemm (transB=1), Add, Relu or Clip.

    Inputs and output are those of :func:`condensed_layer_model`.
    """
    arrays = {"weight": weight.to_dense(), "bias": weight.bias}
    steps = [("Gemm", ["weight", "bias"], {"transB": 1})]
    if with_residual:
        steps.append(("Add", ["residual"], {}))
    if (clip_min, clip_max) == (0.0, math.inf):
        steps.append(("Relu", [], {}))
    elif not clip_is_open(clip_min, clip_max):
        arrays["clip_min"] = np.array(clip_min, np.float32)
        arrays["clip_max"] = np.array(clip_max, np.float32)
        steps.append(("Clip", ["clip_min", "clip_max"], {}))
    nodes, value = [], "x"
    for op_type, constants, attributes in steps:
        output = "y" if len(nodes) == len(steps) - 1 else f"after_{op_type}"
        nodes.append(
            helper.make_node(op_type, [value, *constants], [output], name=op_type, **attributes)
        )
        value = output
    graph = _layer_graph("dense_layer", weight, batch, nodes, arrays, with_residual)
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", opset)],
        producer_name="fanin",
    )


def _layer_graph(
    name: str,
    weight: CondensedWeight,
    batch: int | None,
    nodes: list[NodeProto],
    arrays: dict[str, np.ndarray],
    with_residual: bool,
    x_dtype: str = "float32",
) -> onnx.GraphProto:
    def port(port_name: str, features: int) -> onnx.ValueInfoProto:
        shape = ["batch" if batch is None else batch, features]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(x_dtype))
        return helper.make_tensor_value_info(port_name, kind, shape)

    inputs = [port("x", weight.in_features)]
    if with_residual:
        inputs.append(port("residual", weight.out_features))
    return helper.make_graph(
        nodes,
        name,
        inputs,
        [port("y", weight.out_features)],
        [numpy_helper.from_array(array, key) for key, array in arrays.items()],
    )
