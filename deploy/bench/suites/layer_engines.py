"""The engines of a layer, by the names that --engines takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....ort_ops.format.condensed import CondensedWeight
from ..engines.onnx_models import save_null_model
from ..engines.ort import OrtEngine
from ..engines.peers import csr_engines, deepsparse_engines, openvino_engine, torch_engine
from ..engines.protocol import Engine, UnavailableEngine
from ..requirements import RequirementError, require

ENGINES = (
    "dense",
    "condensed",
    "structured",
    "fallback",
    "deepsparse",
    "openvino",
    "torch",
    "torch-compile",
    "torch-gather",
    "torch-csr",
    "scipy-csr",
    "condensed-float16",
    "condensed-bfloat16",
    "dense-int8",
    "openvino-default",
)

COMPILED = ("torch-compile", "torch-gather")
"""Engines whose preparation takes tens of seconds."""

NARROW = ENGINES[-4:]
"""Engines that compute with types narrower than float32; they stand in a table of their own."""

FAMILIES = {
    "DeepSparse": ("deepsparse",),
    "OpenVINO": ("openvino",),
    "torch": ("torch", "torch-compile", "torch-gather"),
    "CSR": ("torch-csr", "scipy-csr"),
}

_INTEGER_OPS = ("MatMulInteger", "DynamicQuantizeMatMul", "QGemm", "ConvInteger")

# Name: form, model, whether with the library, what it computes with.
_RUNTIME = {
    "dense": ("Gemm on the scattered weight", "dense", False, "float32"),
    "condensed": ("ai.fanin::CondensedGemm", "condensed", True, "float32"),
    "structured": ("MatMul of the active neurons, Gather", "structured", False, "float32"),
    "fallback": ("CondensedGemm's function, no library", "condensed", False, "float32"),
    "condensed-float16": ("CondensedGemm, float16 weights", "float16", True, "float16"),
    "condensed-bfloat16": ("CondensedGemm, bfloat16 weights", "bfloat16", True, "bfloat16"),
    "dense-int8": ("quantize_dynamic of the dense model, int8 weights", "int8", False, "int8"),
}


def layer_engines(
    names: Sequence[str],
    weight: CondensedWeight,
    batch: int,
    threads: int,
    folder: Path,
    deepsparse_python: Path,
) -> tuple[list[Engine], Engine]:
    """Make the engines of these names, and the null session; their models go into ``folder``.

    A name may stand for several engines: all forms of DeepSparse and of CSR.
    """
    engines: list[Engine] = []
    for name in names:
        if name == "structured" and weight.active == weight.out_features:
            engines.append(UnavailableEngine(name, "no neuron is ablated: it is the dense layer"))
        elif name in _RUNTIME:
            engines.append(_runtime_engine(name, weight, batch, threads, folder))
        elif name == "deepsparse":
            engines += deepsparse_engines(weight, batch, threads, folder, deepsparse_python)
        elif name in ("openvino", "openvino-default"):
            engines.append(openvino_engine(name, weight, batch, threads, folder))
        elif name in FAMILIES["torch"]:
            engines.append(torch_engine(name, weight, batch, threads, folder))
        else:
            engines += csr_engines(name, weight, batch, threads, folder)
    null = folder / "null.onnx"
    form = save_null_model(null, batch, weight.in_features, weight.out_features)
    return engines, OrtEngine("null", form, null, threads, library=False)


def engine_option(engine: str) -> str | None:
    """Which of ENGINES an engine's name belongs to: it may have its form behind it."""
    fits = [name for name in ENGINES if engine == name or engine.startswith(f"{name}-")]
    return max(fits, key=len, default=None)


def _runtime_engine(
    name: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> Engine:
    form, kind, library, precision = _RUNTIME[name]
    try:
        path = _save(kind, weight, batch, folder)
    except (RequirementError, QuantizationError) as error:
        if kind != "int8":
            raise
        return UnavailableEngine(name, str(error))
    return OrtEngine(name, form, path, threads, library=library, precision=precision)


def _save(kind: str, weight: CondensedWeight, batch: int, folder: Path) -> Path:
    import onnx

    from ....export.onnx_op import condensed_layer_model, dense_layer_model
    from ....export.passes.standard_forms import structured_layer_model

    path = folder / f"{kind}.onnx"
    if kind == "int8":
        return _save_int8(dense_layer_model(weight, batch), path)
    if kind in ("float16", "bfloat16"):
        model = condensed_layer_model(weight.astype(kind), batch)
    else:
        make = {
            "dense": dense_layer_model,
            "condensed": condensed_layer_model,
            "structured": structured_layer_model,
        }
        model = make[kind](weight, batch)
    onnx.save(model, path)
    return path


def _save_int8(model: Any, path: Path) -> Path:
    """Quantize the weights of an ONNX model dynamically (int8, per channel); returns ``path``.

    Raises QuantizationError when the tool left every weight as it was.
    """
    onnx = require("onnx", "the benchmark makes its models with it")
    quantization = require("onnxruntime.quantization", "it makes the int8 model")
    source = path.with_suffix(".float32.onnx")
    onnx.save(model, source)
    quantization.quantize_dynamic(
        source, path, per_channel=True, weight_type=quantization.QuantType.QInt8
    )
    if not {node.op_type for node in onnx.load(path).graph.node} & set(_INTEGER_OPS):
        raise QuantizationError("quantize_dynamic left every weight as it was")
    return path


class QuantizationError(RuntimeError):
    """ONNX Runtime's tool did not do what it is for."""
