"""A model of two linear layers for the tests of quantization, and what is stored of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from .onnx_models import node, sparse, write_model

W1, W2 = sparse((48, 64), 0.9), sparse((64, 32), 0.8, seed=1)
W1[np.arange(64) % 48, np.arange(64)] = 0.5  # no row without weights
BIAS = np.linspace(-1, 1, 64).astype(np.float32)
SAMPLES = np.random.default_rng(0).standard_normal((96, 48)).astype(np.float32)
CALIBRATION = {"x": SAMPLES}

TWO_LAYERS = [
    node("Gemm", ["x", "w1", "b1"], "h"),
    node("Relu", ["h"], "r"),
    node("MatMul", ["r", "w2"]),
]


def two_layers(path: Path, **arrays: np.ndarray) -> Path:
    return write_model(path, TWO_LAYERS, {"w1": W1, "b1": BIAS, "w2": W2, **arrays})


def constants(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def dense_rows(path: Path, layer: str, shape: tuple[int, int]) -> np.ndarray:
    """Put the stored int8 weights of a layer back in their places, ``[out, in]``."""
    arrays = constants(path)
    values, indices, rows = (arrays[f"{layer}.{part}"] for part in ("values", "indices", "rows"))
    dense = np.zeros(shape, np.int32)
    for row, columns, entries in zip(rows, indices, values, strict=True):
        np.add.at(dense[row], columns.astype(np.int64), entries)  # padding adds 0
    return dense


def relative(expected: np.ndarray, actual: np.ndarray) -> float:
    exact = expected.astype(np.float64)
    return float(np.sqrt(np.square(actual - exact).sum() / np.square(exact).sum()))
