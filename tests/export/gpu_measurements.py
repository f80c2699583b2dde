"""What was measured on GPUs, in docs/results: layers, how many times as fast as dense."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[2] / "docs/results"


class Cell(NamedTuple):
    """One measured layer: speed as a multiple of dense on tensor cores; TF32 for float32."""

    columns: int
    outputs: int
    sparsity: float
    rows: int
    dtype: str
    ratio: float


def large() -> dict[str, Any]:
    return json.loads((RESULTS / "gpu-h200-large.json").read_text())


def gather_cold() -> Iterator[Cell]:
    """Yield layers that were read from memory."""
    found = large()["gather"]
    for layer in found["layers"]:
        for rows, ratio in zip(found["rows"], layer["ratio"], strict=True):
            size = (layer["in"], layer["out"], layer["sparsity"])
            yield Cell(*size, rows, "bfloat16", ratio)


def gather_hot() -> Iterator[Cell]:
    """Yield layers that were read from the L2, of which no neuron is ablated."""
    cases = json.loads((RESULTS / "gpu-h200.json").read_text())["parts"]["bench"]["cases"]
    for case in cases:
        if case["ablated"]:
            continue
        rival = "dense TF32" if case["kind"] == "float32" else "dense bfloat16"
        size = (*case["shape"], case["sparsity"] / 100)
        yield Cell(*size, case["batch"], case["kind"], case["graph"][rival]["ratio"])


def sketch() -> Iterator[Cell]:
    """Yield layers that a sketch of the expand kernel was measured with."""
    for layer in large()["expand_sketch"]["layers"]:
        for rows, times in layer["microseconds"].items():
            size = (layer["in"], layer["out"], layer["sparsity"])
            yield Cell(*size, int(rows), "bfloat16", times["dense"] / times["sketch"])
