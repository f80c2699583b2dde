"""Random nodes of the ops on 8-bit integers: every ISA, the functions, and the QDQ graph.

(seed, case number) determines everything, so a failure can be replayed from its message. Of a node
the same integers (or float32 numbers) are asked, bit for bit, from

- the definition in NumPy;
- a session with the library, for each ISA that this CPU can be told to use;
- onnx's ReferenceEvaluator and a session without the library, which run the op's function.

The QDQ graph (DequantizeLinear, product in float32, QuantizeLinear) rounds its sums, so a number
that lies within their rounding of the middle between two integers may become either. In both
runtimes each of its integers is that of the float64 value or of one at most
``e = (fan_in + 8) * 2^-24 * m`` away from it, m being the magnitude of what is added up, in units
of Y; how many differ from ours is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.export.onnx_quantized_function import (
    condensed_gemm_integer_to_float_function,
    dynamic_quantize_condensed_gemm_function,
    qlinear_condensed_conv_function,
    qlinear_condensed_gemm_function,
)
from fanin.ort_ops import _native
from fanin.ort_ops.contract import QUANTIZED_OPS
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._models import open_session, run
from ._quantized import DYNAMIC, QLINEAR_CONV, QLINEAR_GEMM, TO_FLOAT, Node, random_node
from ._random_conv_nodes import draw_geometry, draw_length, log_uniform
from ._random_tally import RandomCaseError, Tally, forced_isa

FUNCTIONS = {
    QLINEAR_GEMM: qlinear_condensed_gemm_function,
    QLINEAR_CONV: qlinear_condensed_conv_function,
    TO_FLOAT: condensed_gemm_integer_to_float_function,
    DYNAMIC: dynamic_quantize_condensed_gemm_function,
}

LEVELS = onnxruntime.GraphOptimizationLevel


def plain_session(
    model: onnx.ModelProto, level: LEVELS = LEVELS.ORT_DISABLE_ALL
) -> onnxruntime.InferenceSession:
    """A session without the library. Unoptimized: fused kernels may contract float operations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def check_node(seed: int, number: int) -> Tally:
    """Run one case; raises RandomCaseError with the numbers to replay it."""
    node = draw_node(seed, number)
    try:
        counts = Counter(_check(node, seed + number))
    except Exception as error:
        raise RandomCaseError(
            f"{error}\n  in {_describe(node)}\n"
            f"  replay: python tools/random_cases.py --op quantized --seed {seed} --group {number}"
        ) from error
    return Tally(1, routes=counts)


def draw_node(seed: int, number: int) -> Node:
    """Draw a node; on CPUs without VNNI ONNX Runtime's sums saturate beyond weights of 64."""
    rng = np.random.default_rng([seed, number])
    op = QUANTIZED_OPS[rng.integers(len(QUANTIZED_OPS))]
    chosen: dict[str, Any] = {"largest": int(rng.choice([64, 127]))}
    if op == QLINEAR_CONV:
        geometry = draw_geometry(rng)
        chosen["geometry"] = geometry
        sizes = [draw_length(rng, geometry, axis) for axis in range(geometry.axes)]
        chosen["images"] = (int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1])), *sizes)
        columns = geometry.in_features
    else:
        columns = log_uniform(rng, 1, 700)
        chosen |= {"in_features": columns, "outputs": log_uniform(rng, 1, 150)}
        chosen["leading"] = (log_uniform(rng, 1, 80),)
    few = [1, columns, log_uniform(rng, 1, columns), max(1, round(columns * 0.1))]
    return random_node(op, int(rng.integers(1 << 62)), fan_in=int(rng.choice(few)), **chosen)


def _check(node: Node, threads: int) -> Iterator[str]:
    """Compare everything; yields what was compared."""
    wanted, plain = node.expected(), node.build()
    yield node.op
    for isa in _native.supported_isas():
        with forced_isa(isa):
            session = open_session(plain, threads=1 + threads % 3)
        _compare(f"the library, ISA {isa}", run(session, X=node.x), wanted)
        yield f"isa {isa}"
    function = node.build([FUNCTIONS[node.op](20)])
    _compare("the ReferenceEvaluator", ReferenceEvaluator(function).run(None, node.feeds()), wanted)
    yield "function in onnx's ReferenceEvaluator"
    exact = np.abs(node.arrays["values"].astype(np.int32)).max(initial=0) <= 64
    if exact:
        _compare("without the library", plain_session(function).run(None, node.feeds()), wanted)
        yield "function in ONNX Runtime without the library"
    if node.op in (QLINEAR_GEMM, QLINEAR_CONV):
        graph = qdq_model(node)
        yield from _compare_qdq("the ReferenceEvaluator", ReferenceEvaluator(graph), node)
        if exact:
            session = plain_session(graph, LEVELS.ORT_ENABLE_ALL)
            yield from _compare_qdq("ONNX Runtime without the library", session, node)


def _compare(name: str, got: np.ndarray | list[np.ndarray], wanted: np.ndarray) -> None:
    got = got[0] if isinstance(got, list) else got
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        raise RandomCaseError(f"{name}: {got.dtype} {got.shape}, not {wanted.dtype} {wanted.shape}")
    if not np.array_equal(got, wanted, equal_nan=got.dtype == np.float32):
        wrong = np.argwhere(got != wanted)
        first = tuple(wrong[0])
        raise RandomCaseError(
            f"{name}: {len(wrong)} of {got.size} outputs are wrong, first "
            f"y{[int(i) for i in first]} = {got[first]!r}, which should be {wanted[first]!r}"
        )


def qdq_model(node: Node) -> onnx.ModelProto:
    """The node's QDQ graph on the dense weight, as quantizers write it."""
    arrays, attributes = node.arrays, node.attributes
    outputs = len(arrays["bias"])
    scale = np.broadcast_to(arrays["values_scale"], (outputs,))
    x_scale = arrays["x_scale"].reshape(())
    conv = node.op == QLINEAR_CONV
    last = conv and attributes["channels_last"] == 1
    dense = node.dense() if conv else np.ascontiguousarray(node.dense().T)
    constants = {
        "x_scale": x_scale,
        "x_zero_point": arrays["x_zero_point"],
        "w": dense,
        "w_scale": np.ascontiguousarray(scale),
        "w_zero_point": np.zeros(outputs, np.int8),
        "bias": arrays["bias"],
        "bias_scale": x_scale * scale,
        "bias_zero_point": np.zeros(outputs, np.int32),
        "y_scale": arrays["y_scale"].reshape(()),
        "y_zero_point": arrays["y_zero_point"],
        "low": np.float32(attributes["clip_min"]),
        "high": np.float32(attributes["clip_max"]),
    }
    axes = node.x.ndim
    to_first = {"perm": [0, axes - 1, *range(1, axes - 1)]}
    to_last = {"perm": [0, *range(2, axes), 1]}
    nodes = []

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def real(name: str, of: str, **attributes: int) -> str:
        inputs = [of, f"{name}_scale", f"{name}_zero_point"]
        return add("DequantizeLinear", inputs, f"{name}_real", **attributes)

    x = real("x", add("Transpose", ["X"], "x_first", **to_first) if last else "X")
    weight = real("w", "w", axis=0 if conv else 1)
    bias = real("bias", "bias", axis=0)
    if conv:
        names = ("kernel_shape", "strides", "pads", "dilations", "group")
        sizes = {name: attributes[name] for name in names}
        value = add("Conv", [x, weight, bias], "biased", **sizes)
    else:
        value = add("Add", [add("MatMul", [x, weight], "product"), bias], "biased")
    if arrays["residual"].shape != (1,):
        constants |= {name: arrays[name] for name in arrays if name.startswith("residual")}
        constants["residual_scale"] = arrays["residual_scale"].reshape(())
        other = add("Transpose", ["residual"], "r", **to_first) if last else "residual"
        value = add("Add", [value, real("residual", other)], "added")
    if (attributes["clip_min"], attributes["clip_max"]) != (-np.inf, np.inf):
        value = add("Clip", [value, "low", "high"], "clipped")
    value = add("QuantizeLinear", [value, "y_scale", "y_zero_point"], "y_first" if last else "Y")
    if last:
        add("Transpose", [value], "Y", **to_last)
    read = {name for part in nodes for name in part.input}
    x_type = helper.np_dtype_to_tensor_dtype(node.x.dtype)
    graph = helper.make_graph(
        nodes,
        "qdq",
        [helper.make_tensor_value_info("X", x_type, node.x.shape)],
        [helper.make_tensor_value_info("Y", node.y_type, None)],
        [numpy_helper.from_array(np.asarray(constants[n]), n) for n in sorted(read & {*constants})],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def exact_value(node: Node) -> tuple[np.ndarray, np.ndarray]:
    """The float64 value in units of Y before it is rounded, and the magnitude of its terms."""
    arrays, attributes = node.arrays, node.attributes
    scale = np.broadcast_to(arrays["values_scale"], arrays["bias"].shape).astype(np.float64)
    scale = scale * arrays["x_scale"].reshape(())
    weight = node.dense().astype(np.float64)
    x = node.x.astype(np.float64) - arrays["x_zero_point"]
    bias = arrays["bias"].astype(np.float64)
    conv = node.op == QLINEAR_CONV
    last = conv and attributes["channels_last"] == 1
    if conv:
        x = np.moveaxis(x, -1, 1) if last else x
        sums, magnitude = (
            _convolved(a, b, attributes) for a, b in ((x, weight), (np.abs(x), np.abs(weight)))
        )
        scale, bias = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias))
    else:
        sums, magnitude = x @ weight.T, np.abs(x) @ np.abs(weight).T
    value, magnitude = (sums + bias) * scale, (magnitude + np.abs(bias)) * scale
    if last:
        value, magnitude = np.moveaxis(value, 1, -1), np.moveaxis(magnitude, 1, -1)
    if arrays["residual"].shape != (1,):
        steps = arrays["residual"].astype(np.float64) - arrays["residual_zero_point"]
        value = value + steps * arrays["residual_scale"]
        magnitude = magnitude + np.abs(steps) * arrays["residual_scale"]
    unit = arrays["y_scale"].astype(np.float64)
    return value / unit, magnitude / unit


def _convolved(x: np.ndarray, weight: np.ndarray, attributes: Any) -> np.ndarray:
    """A convolution in float64 by torch, which shares no code with ours."""
    import torch
    from torch.nn import functional

    axes = x.ndim - 2
    pads = attributes["pads"]
    around = [pads[axis + end * axes] for axis in reversed(range(axes)) for end in (0, 1)]
    apply = functional.conv1d if axes == 1 else functional.conv2d
    return apply(
        functional.pad(torch.from_numpy(x.copy()), around),
        torch.from_numpy(weight),
        stride=tuple(attributes["strides"]),
        dilation=tuple(attributes["dilations"]),
        groups=attributes["group"],
    ).numpy()


def _compare_qdq(name: str, runtime: Any, node: Node) -> Iterator[str]:
    got = runtime.run(None, {"X": node.x})[0]
    wanted = node.expected()
    value, magnitude = exact_value(node)
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape) or value.shape != got.shape:
        raise RandomCaseError(f"the QDQ graph in {name}: {got.dtype} {got.shape}")
    error = (node.arrays["values"].shape[1] + 8) * 2.0**-24 * magnitude
    unit = np.float64(node.arrays["y_scale"])
    ends = (node.attributes["clip_min"] / unit, node.attributes["clip_max"] / unit)
    limits = np.iinfo(got.dtype)

    def rounded(real: np.ndarray) -> np.ndarray:
        # The ends are rounded to float32 as well.
        slack = 2.0**-22 * np.abs(np.clip(real, *ends)) * np.sign(real - value)
        whole = np.rint(np.clip(real, *ends) + slack) + int(node.arrays["y_zero_point"])
        return np.clip(whole, limits.min, limits.max)

    for who, integers in ((f"the QDQ graph in {name}", got), ("the definition", wanted)):
        wrong = (integers < rounded(value - error)) | (integers > rounded(value + error))
        if wrong.any():
            raise RandomCaseError(f"{who}: {wrong.sum()} of {wrong.size} outputs are wrong")
    yield f"QDQ graph in {name}"
    differ = np.count_nonzero(got != wanted)
    yield f"QDQ graph in {name}, {'equal' if not differ else 'differs where float32 rounds'}"


def _describe(node: Node) -> str:
    geometry = node.attributes.get("kernel_shape")
    kind = ConvGeometry.__name__ if geometry else "layer"
    shapes = {name: list(array.shape) for name, array in node.arrays.items()}
    return f"{node.op} ({kind}) {dict(node.attributes)}, shapes {shapes}"
