"""Tools of others, each as a function from one file to another, and a model to try them on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import onnx.inliner
import onnx.utils
import onnx.version_converter
import onnxruntime
import pytest
from onnx import helper

from fanin.ort_ops import get_library_path, register

from .onnx_models import sparse, write_model

Tool = Callable[[Path, Path], object]

OPS = ["CondensedConv", "CondensedGemm"]
LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL")

X = np.random.default_rng(0).standard_normal((3, 8, 6, 6)).astype(np.float32)


def write_source(path: Path) -> Path:
    """A sparse convolution, two sparse linear layers and a dense one."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "w1"], ["a"], name="fc1"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="act"),
        helper.make_node("MatMul", ["b", "w2"], ["d"], name="fc2"),
        helper.make_node("MatMul", ["d", "w3"], ["y"], name="head"),
    ]
    arrays = {
        "w0": sparse((16, 8, 3, 3)) / 4,
        "b0": np.ones(16, np.float32),
        "w1": sparse((16, 64), seed=1) / 4,
        "w2": sparse((64, 40), seed=2) / 4,
        "w3": sparse((40, 32), 0.0, seed=3) / 4,
    }
    arrays["w0"][:, 0, 0, 0] = arrays["w1"][0] = 1  # no ablated neuron, which would be folded
    return write_model(path, nodes, arrays, x=("batch", 8, 6, 6), opset=20, ir_version=9)


def options(*, library: bool) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 3
    if library:
        register(made)
    return made


def run(path: Path, *, library: bool) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, options(library=library))
    port = session.get_inputs()[0]
    x = X.astype(np.float16) if "float16" in port.type else X
    return session.run(None, {port.name: x})[0].astype(np.float64)


def on_model(change: Callable[[onnx.ModelProto], onnx.ModelProto]) -> Tool:
    """A tool that takes and gives a model in memory."""
    return lambda source, target: onnx.save(change(onnx.load(source)), target)


def onnxsim(**settings: object) -> Tool:
    def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
        simplified, checked = pytest.importorskip("onnxsim").simplify(model, **settings)
        assert checked
        return simplified

    return on_model(simplify)


def onnxslim(source: Path, target: Path) -> None:
    pytest.importorskip("onnxslim").slim(str(source), str(target))


def onnxoptimizer(model: onnx.ModelProto) -> onnx.ModelProto:
    return pytest.importorskip("onnxoptimizer").optimize(model)


def onnxscript_optimizer(**settings: object) -> Tool:
    def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
        import onnxscript.optimizer

        return onnxscript.optimizer.optimize(model, **settings)

    return on_model(optimize)


def version_converter(opset: int) -> Tool:
    return on_model(lambda model: onnx.version_converter.convert_version(model, opset))


class _Samples:
    """A calibration reader of one batch."""

    def __init__(self) -> None:
        self._batches: Iterator[dict[str, np.ndarray]] = iter([{"x": X}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantize_dynamic(source: Path, target: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, target)


def quantize_static(form: str) -> Tool:
    def quantize(source: Path, target: Path) -> None:
        from onnxruntime.quantization import QuantFormat, quantize_static

        quantize_static(source, target, _Samples(), quant_format=QuantFormat[form])

    return quantize


def quant_pre_process(**settings: bool) -> Tool:
    def process(source: Path, target: Path) -> None:
        from onnxruntime.quantization.shape_inference import quant_pre_process

        quant_pre_process(str(source), str(target), **settings)

    return process


def quantize_weights_to_4_bits(source: Path, target: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def float16(**settings: object) -> Tool:
    def convert(model: onnx.ModelProto) -> onnx.ModelProto:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        return convert_float_to_float16(model, **settings)

    return on_model(convert)


def float16_of_common(**settings: object) -> Tool:
    def convert(model: onnx.ModelProto) -> onnx.ModelProto:
        tool = pytest.importorskip("onnxconverter_common.float16")
        blocked = settings.pop("op_block_list", None)
        if blocked:
            settings["op_block_list"] = [*tool.DEFAULT_OP_BLOCK_LIST, *blocked]
        return tool.convert_float_to_float16(model, **settings)

    return on_model(convert)


def transformers_optimizer(level: int) -> Tool:
    def optimize(source: Path, target: Path) -> None:
        from onnxruntime.transformers.optimizer import optimize_model

        made = optimize_model(
            str(source), model_type="bert", num_heads=0, hidden_size=0, opt_level=level
        )
        made.save_model_to_file(str(target))

    return optimize


def symbolic_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    pytest.importorskip("sympy")
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    return SymbolicShapeInference.infer_shapes(model)


def fixed_shape(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed

    make_dim_param_fixed(model.graph, "batch", len(X))
    return model


def saved_by_onnxruntime(level: str, *, library: bool) -> Tool:
    def save(source: Path, target: Path) -> None:
        made = options(library=library)
        made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        made.optimized_model_filepath = str(target)
        onnxruntime.InferenceSession(source, made)

    return save


def ort_format(*arguments: str) -> Tool:
    def convert(source: Path, target: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.onnx").write_bytes(source.read_bytes())
            tool = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort"]
            command = [*tool, folder, "--optimization_style", "Fixed", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            os.replace(Path(folder) / "model.ort", target)

    return convert


def with_library() -> tuple[str, str]:
    return "--custom_op_library", str(get_library_path())


def extract(source: Path, target: Path) -> None:
    onnx.utils.extract_model(source, target, ["x"], ["y"])


def external_data(source: Path, target: Path) -> None:
    onnx.save(onnx.load(source), target, save_as_external_data=True, size_threshold=0)


def add_prefix(**settings: bool) -> Tool:
    return on_model(lambda model: onnx.compose.add_prefix(model, "a_", **settings))


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.inliner.inline_local_functions(model)
