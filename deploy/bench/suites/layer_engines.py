"""The engines of a layer, by the names that --engines takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....ort_ops.contract import COMPUTE_BFLOAT16
from ....ort_ops.format.condensed import CondensedWeight
from ..engines.int8_forms import save_int8_form
from ..engines.onnx_models import X_QUANTIZED, null_session
from ..engines.ort import OrtEngine
from ..engines.peers import int8_peer_engines, peer_engines
from ..engines.protocol import Engine, UnavailableEngine
from ..engines.quantized_layer import QuantizedLayer
from ..requirements import RequirementError, require

PRECISIONS = ("float32", "int8")
"""What a layer's own numbers are: of the weights that are compared, and of inputs and outputs."""

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
    "condensed-bfloat16-compute",
    "dense-int8",
    "openvino-default",
)

INT8_ENGINES = (
    "dense",
    "condensed",
    "condensed-bfloat16-compute",
    "dense-int8-static",
    "condensed-int8-static",
    "openvino-int8",
    "deepsparse-int8",
    "torch-int8-static",
    "dense-int8-dynamic",
    "condensed-int8-dynamic",
    "deepsparse-int8-float",
    "torch-int8-dynamic",
)
"""The engines of a layer of int8 weights. ``dense`` and ``condensed`` compute in float32, and
``condensed-bfloat16-compute`` has float32 inputs and outputs, as have those that end in ``dynamic``
or ``float``; the others have uint8."""

ENGINES_OF = {"float32": ENGINES, "int8": INT8_ENGINES}
"""All engines of a precision."""

DEFAULT_ENGINES = {"float32": ENGINES[:2], "int8": INT8_ENGINES}
"""The engines that are measured by default."""

COMPILED = ("torch-compile", "torch-gather")
"""Engines whose preparation takes tens of seconds, since they are compiled."""

NARROW = ENGINES[-5:]
"""Engines that compute with types narrower than float32; they have a table of their own."""

FAMILIES = {
    "DeepSparse": ("deepsparse",),
    "OpenVINO": ("openvino",),
    "torch": ("torch", "torch-compile", "torch-gather"),
    "CSR": ("torch-csr", "scipy-csr"),
}

INT8_FAMILIES = {
    "ONNX Runtime int8, static": ("dense-int8-static",),
    "OpenVINO int8": ("openvino-int8",),
    "DeepSparse int8": ("deepsparse-int8",),
    "torch int8, static": ("torch-int8-static",),
    "ONNX Runtime int8, dynamic": ("dense-int8-dynamic",),
    "DeepSparse int8, float32 in and out": ("deepsparse-int8-float",),
    "torch int8, dynamic": ("torch-int8-dynamic",),
}
FAMILIES_OF: dict[str, Mapping[str, tuple[str, ...]]] = {"float32": FAMILIES, "int8": INT8_FAMILIES}

_FLOAT_ENDS = ("-dynamic", "-float")

OURS = {
    family: f"condensed-int8-{'dynamic' if options[0].endswith(_FLOAT_ENDS) else 'static'}"
    for family, options in INT8_FAMILIES.items()
}
"""The engine of ours that a family is compared with, where it is not ``condensed``: the one whose
inputs and outputs are of the same type."""

_INTEGER_OPS = ("MatMulInteger", "DynamicQuantizeMatMul", "QGemm", "ConvInteger")

# Name: form, model file, whether with the library, precision.
_RUNTIME = {
    "dense": ("Gemm on the scattered weight", "dense", False, "float32"),
    "condensed": ("ai.fanin::CondensedGemm", "condensed", True, "float32"),
    "structured": ("MatMul of the active neurons, Gather", "structured", False, "float32"),
    "fallback": ("CondensedGemm's function, no library", "condensed", False, "float32"),
    "condensed-float16": ("CondensedGemm, float16 weights", "float16", True, "float16"),
    "condensed-bfloat16": ("CondensedGemm, bfloat16 weights", "bfloat16", True, "bfloat16"),
    "condensed-bfloat16-compute": (
        "CondensedGemm, products of bfloat16",
        "bfloat16-compute",
        True,
        "bfloat16",
    ),
    "dense-int8": ("quantize_dynamic of the dense model, int8 weights", "int8", False, "int8"),
}

# Name: form, format of save_int8_form, whether condensed.
_INT8 = {
    "dense-int8-static": ("com.microsoft::QGemm", "gemm", False),
    "condensed-int8-static": ("ai.fanin::QLinearCondensedGemm", "gemm", True),
    "dense-int8-dynamic": ("com.microsoft::DynamicQuantizeMatMul", "dynamic", False),
    "condensed-int8-dynamic": ("ai.fanin::DynamicQuantizeCondensedGemm", "dynamic", True),
}


def layer_engines(
    names: Sequence[str],
    weight: CondensedWeight,
    batch: int,
    threads: int,
    folder: Path,
    deepsparse_python: Path,
    quantized: QuantizedLayer | None = None,
) -> tuple[list[Engine], Engine]:
    """Make the engines of these names, and the null session; their models go into ``folder``.

    A name may stand for several engines: all forms of DeepSparse and of CSR. Those of INT8_ENGINES
    compute ``quantized``; the null session has uint8 inputs and outputs if it is given.
    """
    engines: list[Engine] = []
    for name in names:
        if name == "structured" and weight.active == weight.out_features:
            engines.append(
                UnavailableEngine(name, "no neuron is ablated, so it is the dense layer")
            )
        elif name in _RUNTIME:
            engines.append(_runtime_engine(name, weight, batch, threads, folder))
        elif quantized is not None:
            if name in _INT8:
                engines.append(_int8_engine(name, quantized, batch, threads, folder))
            else:
                others = batch, threads, folder, deepsparse_python
                engines += int8_peer_engines(name, quantized, *others)
        else:
            engines += peer_engines(name, weight, batch, threads, folder, deepsparse_python)
    x = "x" if quantized is None else X_QUANTIZED
    sizes = batch, weight.in_features, weight.out_features
    return engines, null_session(folder, *sizes, threads, x)


def engine_option(engine: str) -> str | None:
    """Return which of ENGINES an engine belongs to: its name may end with its form."""
    fits = [
        name
        for name in (*ENGINES, *INT8_ENGINES)
        if engine == name or engine.startswith(f"{name}-")
    ]
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
        stored_type, _, computes = kind.partition("-")
        stored = weight.astype(stored_type) if stored_type in ("float16", "bfloat16") else weight
        make = {"dense": dense_layer_model, "structured": structured_layer_model}
        if computes:
            make[kind] = partial(condensed_layer_model, compute=COMPUTE_BFLOAT16)
        onnx.save(make.get(kind, condensed_layer_model)(stored, batch), path)
    return OrtEngine(name, form, path, threads, library=library, precision=precision)


def _int8_engine(
    name: str, layer: QuantizedLayer, batch: int, threads: int, folder: Path
) -> Engine:
    """Write the dense layer in operators of ONNX Runtime, or what fanin export makes of it."""
    from ....export import convert

    form, kind, condensed = _INT8[name]
    path = folder / f"int8-{kind}.onnx"
    save_int8_form(path, kind, layer, batch)
    if condensed:
        dense, path = path, folder / f"int8-{kind}-condensed.onnx"
        convert(dense, path, policy="condensed", min_sparsity=0.0, verify=False)
    grid = None if kind == "dynamic" else layer.y
    return OrtEngine(name, form, path, threads, library=condensed, precision="int8", y_grid=grid)


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
