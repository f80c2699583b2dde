"""The engines of a layer, by the names that --engines takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....ort_ops.format.condensed import CondensedWeight
from ..engines.onnx_models import null_session
from ..engines.ort import OrtEngine
from ..engines.peers import peer_engines
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
"""Engines whose preparation takes tens of seconds, since they are compiled."""

NARROW = ENGINES[-4:]
"""Engines that compute with types narrower than float32; they have a table of their own."""

FAMILIES = {
    "DeepSparse": ("deepsparse",),
    "OpenVINO": ("openvino",),
    "torch": ("torch", "torch-compile", "torch-gather"),
    "CSR": ("torch-csr", "scipy-csr"),
}

_INTEGER_OPS = ("MatMulInteger", "DynamicQuantizeMatMul", "QGemm", "ConvInteger")

# Name: form, model file, whether with the library, precision.
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
            engines.append(
                UnavailableEngine(name, "no neuron is ablated, so it is the dense layer")
            )
        elif name in _RUNTIME:
            engines.append(_runtime_engine(name, weight, batch, threads, folder))
        else:
            engines += peer_engines(name, weight, batch, threads, folder, deepsparse_python)
    return engines, null_session(folder, batch, weight.in_features, weight.out_features, threads)


def engine_option(engine: str) -> str | None:
    """Return which of ENGINES an engine belongs to: its name may end with its form."""
    fits = [name for name in ENGINES if engine == name or engine.startswith(f"{name}-")]
    return max(fits, key=len, default=None)


def _runtime_engine(
    name: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> Engine:
    import onnx

    from ....export.onnx_op import condensed_layer_model, dense_layer_model
    from ....export.passes.standard_forms import structured_layer_model

    form, kind, library, precision = _RUNTIME[name]
    path = folder / f"{kind}.onnx"
    if kind == "int8":
        try:
            _save_int8(dense_layer_model(weight, batch), path)
        except (RequirementError, QuantizationError) as error:
            return UnavailableEngine(name, str(error))
    else:
        stored = weight.astype(kind) if kind in ("float16", "bfloat16") else weight
        make = {"dense": dense_layer_model, "structured": structured_layer_model}
        onnx.save(make.get(kind, condensed_layer_model)(stored, batch), path)
    return OrtEngine(name, form, path, threads, library=library, precision=precision)


def _save_int8(model: Any, path: Path) -> None:
    """Quantize the weights of an ONNX model dynamically (int8, per channel).

    Raises QuantizationError when the tool left every weight unchanged.
    """
    onnx = require("onnx", "the benchmark makes its models with it")
    quantization = require("onnxruntime.quantization", "it makes the int8 model")
    source = path.with_suffix(".float32.onnx")
    onnx.save(model, source)
    quantization.quantize_dynamic(
        source, path, per_channel=True, weight_type=quantization.QuantType.QInt8
    )
    if not {node.op_type for node in onnx.load(path).graph.node} & set(_INTEGER_OPS):
        raise QuantizationError("quantize_dynamic left every weight unchanged")


class QuantizationError(RuntimeError):
    """ONNX Runtime's tool quantized nothing."""
