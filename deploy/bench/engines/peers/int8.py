"""A sparse layer of 8-bit integers in other runtimes, each engine in a process of its own.

Input and output are uint8, as between two layers of a quantized network, unless the runtime
quantizes its input itself, or for ``deepsparse-int8-float``. Each runtime gets the forms that it
has int8 kernels for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..int8_forms import save_int8_form
from ..protocol import Engine, UnavailableEngine
from ..quantized_layer import Grid, QuantizedLayer
from .child_process import NO_DEEPSPARSE, REMEDIES, worker_command
from .remote import Child, RemoteEngine


class _Form(NamedTuple):
    """An engine, named ``option`` and ``suffix``, and how a layer is expressed to its runtime.

    ``format`` is one of save_int8_form, or the library of torch's kernels.
    """

    option: str
    suffix: str
    kind: str
    format: str
    text: str

    @property
    def columns(self) -> bool:
        """Whether input and output are [features, batch], so that nothing is transposed."""
        return self.format.startswith("spatial")

    @property
    def floats(self) -> bool:
        """Whether input and output are float32."""
        return self.option.endswith(("-dynamic", "-float"))


_ONE_SCALE = "one scale for all weights"
_MATMUL = "MatMulInteger, scaled in float32"
_CONV = f"QLinearConv 1x1, {_ONE_SCALE}"
_SPATIAL = f"QLinearConv 1x1 on [1, in, 1, batch], {_ONE_SCALE}; transposes not timed"
_STATIC, _DYNAMIC = "quantized.linear", "quantized.linear_dynamic"
_FORMS = (
    _Form("openvino-int8", "", "openvino", "qdq", "DequantizeLinear, Gemm, QuantizeLinear"),
    *(
        _Form(option, f"-{form}", "deepsparse", f"{form}{ends}", text)
        for option, ends in (("deepsparse-int8", ""), ("deepsparse-int8-float", "-float"))
        for form, text in (("matmul", _MATMUL), ("conv", _CONV), ("spatial", _SPATIAL))
    ),
    _Form("torch-int8-static", "-x86", "torch-int8", "x86", _STATIC),
    _Form("torch-int8-static", "-onednn", "torch-int8", "onednn", _STATIC),
    _Form("torch-int8-dynamic", "-x86", "torch-int8", "x86", _DYNAMIC),
    _Form("torch-int8-dynamic", "-onednn", "torch-int8", "onednn", _DYNAMIC),
)


def int8_peer_engines(
    option: str,
    layer: QuantizedLayer,
    batch: int,
    threads: int,
    folder: Path,
    deepsparse_python: Path,
) -> list[Engine]:
    """Make the engines of an option of the command line, as peer_engines does."""
    if option.startswith("deepsparse") and not deepsparse_python.is_file():
        return [UnavailableEngine(option, NO_DEEPSPARSE)]
    engines: list[Engine] = []
    for one in _FORMS:
        if one.option == option and (batch > 1 or not one.columns):
            name = one.option + one.suffix
            child = Child(
                one.kind,
                layer={
                    **_save(one, layer, batch, folder / name),
                    "int8": one.kind == "openvino",
                },
                null=_save(one, _null_layer(one.kind), 1, folder / f"{name}-null"),
                remedy=REMEDIES[one.kind],
                columns=one.columns,
                command=worker_command(one.kind, deepsparse_python),
            )
            grids = None if one.floats else (layer.x, layer.y)
            output = (batch, layer.out_features)
            engines.append(
                RemoteEngine(name, one.text, child, threads, output, precision="int8", grids=grids)
            )
    return engines


def _null_layer(kind: str) -> QuantizedLayer:
    """Make a layer too small to matter, whose run is the cost of a call."""
    features = 16 if kind == "deepsparse" else 1
    ones = np.ones((features, features), np.int8)
    floats = np.ones(features, np.float32)
    return QuantizedLayer(ones, floats, floats, Grid(1.0, 128), Grid(1.0, 128))


def _save(form: _Form, layer: QuantizedLayer, batch: int, path: Path) -> dict[str, Any]:
    """Write the layer to ``path`` with a suffix; returns the worker's ``layer``."""
    if form.kind != "torch-int8":
        model = save_int8_form(path.with_suffix(".onnx"), form.format, layer, batch)
        return {**model, "precision": "f32"}
    file = path.with_suffix(".npz")
    np.savez(file, weight=layer.integers, scales=layer.scales, bias=layer.bias)
    grids = [[grid.scale, grid.zero_point] for grid in (layer.x, layer.y)]
    return {
        "arrays": str(file),
        "shape": [batch, layer.in_features],
        "dtype": "float32" if form.floats else "uint8",
        "engine": form.format,
        "grids": None if form.floats else grids,
    }
