"""Quantized linear layers, as operators say them in ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .quantized_models import (
    X_SCALE,
    Y_SCALE,
    dequantize,
    grid,
    int8,
    node,
    quantize,
    scales,
    write,
)

W = int8((48, 32))
BIAS = np.linspace(-3, 3, 32).astype(np.float32)
GRIDS = {**grid("x", X_SCALE, 117), **grid("y", Y_SCALE, 131)}
PER_COLUMN = {"w": W, "w_scale": scales(32), "w_zero": np.zeros(32, np.int8)}
PER_ROW = {"w": W.T.copy(), "w_scale": scales(32), "w_zero": np.zeros(32, np.int8)}
PER_TENSOR = {"w": W, "w_scale": np.float32(0.003), "w_zero": np.int8(0)}
UINT8 = {
    "w": (W.astype(np.int16) + 128).astype(np.uint8),
    "w_scale": scales(32),
    "w_zero": np.full(32, 128, np.uint8),
}
BEGIN = [quantize("x", "xq", "x"), dequantize("xq", "xd", "x")]
END = [quantize("h", "yq", "y"), dequantize("yq", "y", "y")]
MATMUL = [dequantize("w", "wd", "w", axis=1), node("MatMul", ["xd", "wd"], "h")]
GEMM_ROWS = dequantize("w", "wd", "w", axis=0)
INT32_BIAS = {
    "b": np.rint(BIAS / (X_SCALE * scales(32))).astype(np.int32),
    "b_scale": X_SCALE * scales(32),
    "b_zero": np.zeros(32, np.int32),
}

BIASED = [
    dequantize("w", "wd", "w", axis=1),
    dequantize("b", "bd", "b", axis=0),
    node("Gemm", ["xd", "wd", "bd"], "h"),
]

LINEAR = {
    "per column": (MATMUL, PER_COLUMN),
    "negative axis": (
        [dequantize("w", "wd", "w", axis=-1), node("MatMul", ["xd", "wd"], "h")],
        PER_COLUMN,
    ),
    "per tensor": (
        [dequantize("w", "wd", "w"), node("MatMul", ["xd", "wd"], "h")],
        PER_TENSOR,
    ),
    "uint8 weights around 128": (MATMUL, UINT8),
    "no zero point of the weight": (
        [node("DequantizeLinear", ["w", "w_scale"], "wd", axis=1), *MATMUL[1:]],
        PER_COLUMN,
    ),
    "transposed weight": (
        [
            GEMM_ROWS,
            node("Transpose", ["wd"], "wt", perm=[1, 0]),
            node("MatMul", ["xd", "wt"], "h"),
        ],
        PER_ROW,
    ),
    "weight quantized in the graph": (
        [
            node("QuantizeLinear", ["wf", "w_scale", "w_zero"], "wq", axis=0),
            dequantize("wq", "wd", "w", axis=0),
            node("Transpose", ["wd"], "wt", perm=[1, 0]),
            node("MatMul", ["xd", "wt"], "h"),
        ],
        {**PER_ROW, "wf": PER_ROW["w"] * PER_ROW["w_scale"][:, None]},
    ),
    "float bias after": (
        [MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Add", ["p", "b"], "h")],
        {**PER_COLUMN, "b": BIAS},
    ),
    "int32 bias": (
        [
            dequantize("w", "wd", "w", axis=1),
            dequantize("b", "bd", "b", axis=0),
            node("Gemm", ["xd", "wd", "bd"], "h"),
        ],
        {**PER_COLUMN, **INT32_BIAS},
    ),
    "int32 bias of another scale": (
        [
            dequantize("w", "wd", "w", axis=1),
            dequantize("b", "bd", "b", axis=0),
            node("Gemm", ["xd", "wd", "bd"], "h"),
        ],
        {**PER_COLUMN, **INT32_BIAS, "b_scale": np.float32(2.0) * INT32_BIAS["b_scale"]},
    ),
    "transB, float bias": (
        [GEMM_ROWS, node("Gemm", ["xd", "wd", "b"], "h", transB=1)],
        {**PER_ROW, "b": BIAS},
    ),
    "alpha and beta": (
        [MATMUL[0], node("Gemm", ["xd", "wd", "b"], "h", alpha=0.5, beta=-2.0)],
        {**PER_COLUMN, "b": BIAS},
    ),
    "Relu": (
        [*MATMUL[:1], node("MatMul", ["xd", "wd"], "p"), node("Relu", ["p"], "h")],
        PER_COLUMN,
    ),
    "Relu6": (
        [MATMUL[0], node("MatMul", ["xd", "wd"], "p"), node("Clip", ["p", "low", "high"], "h")],
        {**PER_COLUMN, "low": np.float32(0), "high": np.float32(2)},
    ),
}


def gemm(path: Path, case: str, x: tuple[int | str, ...] = ("batch", 48), **fields) -> Path:
    nodes, arrays = LINEAR[case]
    y = (*x[:-1], 32)
    used = {name for n in [*BEGIN, *nodes, *END] for name in n.input}
    constants = {name: a for name, a in {**GRIDS, **arrays}.items() if name in used}
    return write(path, [*BEGIN, *nodes, *END], constants, x=x, y=y, **fields)
