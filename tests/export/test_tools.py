"""What other tools make of an exported file; one test for each row of docs/export.md's table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from fanin.export import convert
from fanin.ort_ops import get_library_path, register

from .onnx_models import sparse, write_model

X = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two condensed layers around an activation, then a dense one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="fc1"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="act"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="fc2"),
        helper.make_node("MatMul", ["c", "w3"], ["y"], name="head"),
    ]
    first = sparse((48, 64))
    first[0] = 1  # no ablated neuron, which would be folded
    arrays = {
        "w1": first,
        "w2": sparse((64, 40), seed=1),
        "w3": sparse((40, 32), 0.0, seed=2),
    }
    source = write_model(tmp_path / "in.onnx", nodes, arrays, opset=20, ir_version=9)
    convert(source, tmp_path / "model.onnx", policy="condensed")
    return tmp_path / "model.onnx"


def options(*, library: bool) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 3
    if library:
        register(made)
    return made


def run(model: Path | onnx.ModelProto, *, library: bool) -> np.ndarray:
    loaded = model if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(loaded, options(library=library))
    x = X.astype(np.float16) if "16" in session.get_inputs()[0].type else X
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_kept(model: onnx.ModelProto, original: Path, tolerance: float = 1e-5) -> None:
    """Both condensed nodes and their function are there, and the file runs both ways."""
    assert op_types(model).count("CondensedGemm") == 2
    assert ("ai.fanin", "CondensedGemm") in {(f.domain, f.name) for f in model.functions}
    expected = run(original, library=False).astype(np.float64)
    for library in (False, True):
        actual = run(model, library=library)
        np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max())


def test_onnxsim_keeps_the_op_when_it_has_the_library(path: Path):
    onnxsim = pytest.importorskip("onnxsim")
    model, checked = onnxsim.simplify(onnx.load(path), custom_lib=str(get_library_path()))
    assert checked
    assert op_types(model).count("CondensedGemm") == 2
    np.testing.assert_allclose(run(model, library=True), run(path, library=True), atol=1e-5)


def test_onnxscript_optimizer_without_inlining_keeps_the_op(path: Path):
    import onnxscript

    assert_kept(onnxscript.optimizer.optimize(onnx.load(path), inline=False), path)


def test_onnxscript_optimizer_that_inlines_makes_it_dense(path: Path):
    import onnxscript

    model = onnxscript.optimizer.optimize(onnx.load(path))
    assert "CondensedGemm" not in op_types(model)
    np.testing.assert_allclose(run(model, library=False), run(path, library=False), atol=1e-5)


@pytest.mark.parametrize("library", [True, False])
def test_model_that_onnxruntime_optimized_and_saved(path: Path, tmp_path: Path, library: bool):
    made = options(library=library)
    made.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(path, made)
    model = onnx.load(tmp_path / "optimized.onnx")
    # The functions are gone: saved with the library the file needs it, without it is dense.
    assert not model.functions
    assert op_types(model).count("CondensedGemm") == (2 if library else 0)
    np.testing.assert_allclose(
        run(tmp_path / "optimized.onnx", library=library), run(path, library=True), atol=1e-5
    )


def test_ort_format_keeps_the_op(path: Path, tmp_path: Path):
    folder = tmp_path / "ort"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(path.read_bytes())
    command = [
        sys.executable,
        "-m",
        "onnxruntime.tools.convert_onnx_models_to_ort",
        str(folder),
        "--custom_op_library",
        str(get_library_path()),
        "--optimization_style",
        "Fixed",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(Exception, match="CondensedGemm"):
        run(folder / "model.ort", library=False)
    np.testing.assert_allclose(
        run(folder / "model.ort", library=True), run(path, library=True), atol=1e-5
    )


def test_quantize_dynamic_quantizes_the_rest(path: Path, tmp_path: Path):
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(path, tmp_path / "quantized.onnx")
    model = onnx.load(tmp_path / "quantized.onnx")
    assert "MatMulInteger" in op_types(model)
    assert_kept(model, path, tolerance=0.05)


def test_float16_converter_told_to_block_the_op_keeps_its_values_float32(path: Path):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(
        onnx.load(path), keep_io_types=True, op_block_list=["CondensedGemm"]
    )
    assert_kept(model, path, tolerance=5e-3)
    types = {t.name: t.data_type for t in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "CondensedGemm":
            cast = producers[node.input[1]]
            assert cast.op_type == "Cast"
            assert types[cast.input[0]] == onnx.TensorProto.FLOAT
        if node.name == "head":
            assert types[node.input[1]] == onnx.TensorProto.FLOAT16


def test_symbolic_shape_infer_knows_the_shapes(path: Path):
    pytest.importorskip("sympy")
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    model = SymbolicShapeInference.infer_shapes(onnx.load(path))
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.value_info
    }
    assert (shapes["a"], shapes["c"]) == (["batch", 64], ["batch", 40])
    assert_kept(model, path)


def test_extract_model_takes_a_part_with_its_function(path: Path, tmp_path: Path):
    onnx.utils.extract_model(path, tmp_path / "part.onnx", ["x"], ["b"])
    model = onnx.load(tmp_path / "part.onnx")
    assert op_types(model) == ["CondensedGemm", "Sigmoid"]
    for library in (False, True):
        assert run(tmp_path / "part.onnx", library=library).shape == (3, 64)


def test_transformers_optimizer_at_level_0_keeps_the_op(path: Path):
    from onnxruntime.transformers.optimizer import optimize_model

    optimized = optimize_model(
        str(path), model_type="bert", num_heads=0, hidden_size=0, opt_level=0
    )
    assert_kept(optimized.model, path)


@pytest.mark.parametrize("level", [1, 2])
def test_transformers_optimizer_at_higher_levels_makes_it_dense(path: Path, level: int):
    from onnxruntime.transformers.optimizer import optimize_model

    optimized = optimize_model(
        str(path), model_type="bert", num_heads=0, hidden_size=0, opt_level=level
    )
    assert "CondensedGemm" not in op_types(optimized.model)
    np.testing.assert_allclose(
        run(optimized.model, library=False), run(path, library=True), atol=1e-5
    )


def test_version_converter_keeps_the_op(path: Path):
    model = onnx.version_converter.convert_version(onnx.load(path), 21)
    assert op_types(model).count("CondensedGemm") == 2


def test_names_are_readable_and_unique(path: Path):
    graph = onnx.load(path).graph
    assert [node.name for node in graph.node] == ["fc1", "act", "fc2", "head"]
    names = [t.name for t in graph.initializer]
    assert len(set(names)) == len(names)
    assert {"w1.values", "w1.indices", "w1.bias", "w1.rows"} <= set(names)


TESTS_OF_ROWS = {
    "onnxsim": [test_onnxsim_keeps_the_op_when_it_has_the_library],
    "onnxscript optimizer": [
        test_onnxscript_optimizer_without_inlining_keeps_the_op,
        test_onnxscript_optimizer_that_inlines_makes_it_dense,
    ],
    "ONNX Runtime, optimized model saved": [test_model_that_onnxruntime_optimized_and_saved],
    "`.ort` format": [test_ort_format_keeps_the_op],
    "quantize_dynamic": [test_quantize_dynamic_quantizes_the_rest],
    "float16 converter of onnxruntime.transformers": [
        test_float16_converter_told_to_block_the_op_keeps_its_values_float32
    ],
    "symbolic_shape_infer": [test_symbolic_shape_infer_knows_the_shapes],
    "onnx.utils.extract_model": [test_extract_model_takes_a_part_with_its_function],
    "onnxruntime.transformers optimizer": [
        test_transformers_optimizer_at_level_0_keeps_the_op,
        test_transformers_optimizer_at_higher_levels_makes_it_dense,
    ],
    "onnx version converter": [test_version_converter_keeps_the_op],
    "netron": [test_names_are_readable_and_unique],
}


def test_every_row_of_the_documented_table_has_its_test():
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    table = text.partition("## Other tools")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(TESTS_OF_ROWS)
