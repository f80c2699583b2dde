"""A layer or a model in DeepSparse, which lives under a Python of its own.

On Zen 4 at batch 1 and 16 it runs sparse Gemm and MatMul no faster than dense ones, but the same
weights as a 1x1 convolution faster; quoting one form would be unfair to it. All forms are timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .....ort_ops.format.condensed import CondensedWeight
from ..protocol import Engine, UnavailableEngine
from .deepsparse_model import UnsupportedModelError, deepsparse_file
from .dense_forms import save_dense_form
from .remote import WORKER, Child, RemoteEngine

DEEPSPARSE_PYTHON = Path(".cache/deepsparse-venv/bin/python")
"""Where ``make deepsparse-env`` puts it, in the working directory."""

_NAME = "deepsparse"
_REMEDY = "run make deepsparse-env in a checkout of fanin, or pass --deepsparse-python"
_NULL_FEATURES = 16

_FORMS = {
    "gemm": "Gemm(transB=1)",
    "matmul": "MatMul, Add",
    "conv": "Conv 1x1 on [batch, in, 1, 1]",
    "spatial": "Conv 1x1 on [1, in, 1, batch]: input and output transposed, which is not timed",
}


def deepsparse_engines(
    weight: CondensedWeight, batch: int, threads: int, folder: Path, python: Path
) -> list[Engine]:
    """Write the models of all forms into ``folder``; engines that run them under ``python``.

    At batch 1 the two convolutions are the same, so there are three. Without the interpreter there
    is one engine, which is excluded with the reason.
    """
    if not python.is_file():
        return [_without_python()]
    dense = weight.to_dense()
    engines: list[Engine] = []
    for form, text in _FORMS.items():
        if form == "spatial" and batch == 1:
            continue
        path = folder / f"deepsparse-{form}.onnx"
        layer = save_dense_form(path, form, dense, weight.bias, batch)
        child = _child(python, layer, form, folder, columns=form == "spatial")
        output = (batch, weight.out_features)
        engines.append(RemoteEngine(f"{_NAME}-{form}", text, child, threads, output))
    return engines


def deepsparse_model(
    path: Path,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    threads: int,
    folder: Path,
    python: Path,
) -> Engine:
    """Run the model under ``python``; unavailable without it, or without a version that it takes.

    The weights in the file are as sparse as ours, which is all that DeepSparse needs to know.
    """
    if not python.is_file():
        return _without_python()
    try:
        model = deepsparse_file(path, folder / "deepsparse.onnx")
    except UnsupportedModelError as error:
        return UnavailableEngine(_NAME, str(error))
    layer = {"model": str(model.path), "shape": list(inputs)}
    child = _child(python, layer, "gemm", folder)
    return RemoteEngine(_NAME, f"{path.name}, {model}", child, threads, outputs)


def _child(
    python: Path, layer: Mapping[str, Any], form: str, folder: Path, *, columns: bool = False
) -> Child:
    null = np.ones((_NULL_FEATURES, _NULL_FEATURES), np.float32)
    path = folder / f"deepsparse-{form}-null.onnx"
    return Child(
        kind=_NAME,
        layer=layer,
        null=save_dense_form(path, form, null, null[0], 1),
        remedy=_REMEDY,
        columns=columns,
        # No symlink is followed: an environment's interpreter finds its packages by its path.
        command=(str(python.absolute()), str(WORKER)),
    )


def _without_python() -> Engine:
    return UnavailableEngine(_NAME, f"DeepSparse's Python is not there; {_REMEDY}")
