"""What other tools make of a file before and after an export: the rows of docs/tools.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

from fanin.export import ExportError, convert

from . import _tools as tools
from .onnx_models import node_types

FORMAT = pytest.mark.slow
"""Of runs that start another Python."""


@dataclass(frozen=True)
class After:
    """What a tool makes of an exported file, which has three condensed layers.

    ``kept``: all are there with their functions, and the file runs with and without the library.
    ``bare``: they are there without functions, so the file needs the library. ``dense``: they are
    standard operators. ``broken``: ONNX Runtime does not load the file. Exported ``again``, the
    result has at least this many condensed layers; None where it is not exported again.
    """

    tool: tools.Tool
    becomes: Literal["kept", "bare", "dense", "broken"]
    again: int | None = 3
    tolerance: float = 1e-5


BLOCKED = {"op_block_list": tools.OPS}

AFTER = {
    "onnxsim": [After(tools.onnxsim(), "kept")],
    "onnxslim": [After(tools.onnxslim, "kept")],
    "onnxoptimizer": [After(tools.on_model(tools.onnxoptimizer), "kept")],
    "onnxscript optimizer": [After(tools.onnxscript_optimizer(), "dense")],
    "onnxscript optimizer, `inline=False`": [
        After(tools.onnxscript_optimizer(inline=False), "kept")
    ],
    "onnx version converter": [After(tools.version_converter(n), "bare") for n in (17, 21)],
    "`onnx.compose.add_prefix`": [After(tools.add_prefix(), "dense")],
    "`onnx.compose.add_prefix`, `rename_functions=False`": [
        After(tools.add_prefix(rename_functions=False), "kept")
    ],
    "`onnx.inliner`": [After(tools.on_model(tools.inline), "dense", again=0)],
    "`onnx.utils.extract_model`": [After(tools.extract, "kept")],
    "onnx, saved with external data": [After(tools.external_data, "kept")],
    "quantize_dynamic": [After(tools.quantize_dynamic, "kept", tolerance=0.05)],
    "quantize_static": [
        After(tools.quantize_static(form), "kept", tolerance=0.05) for form in ("QDQ", "QOperator")
    ],
    "quant_pre_process": [After(tools.quant_pre_process(), "dense")],
    "quant_pre_process, `skip_optimization=True`": [
        After(tools.quant_pre_process(skip_optimization=True), "kept")
    ],
    "MatMulNBits quantizer": [After(tools.quantize_weights_to_4_bits, "kept", tolerance=0.2)],
    "float16 converters": [
        After(tools.float16(), "broken", again=None),
        After(tools.float16(keep_io_types=True), "broken", again=None),
        After(tools.float16_of_common(), "broken", again=None),
    ],
    "float16 converters, `op_block_list`": [
        After(tools.float16(**BLOCKED), "kept", tolerance=5e-3),
        After(tools.float16(keep_io_types=True, **BLOCKED), "kept", tolerance=5e-3),
        After(tools.float16_of_common(keep_io_types=True, **BLOCKED), "kept", tolerance=5e-3),
    ],
    "onnxruntime.transformers optimizer, `opt_level=0`": [
        After(tools.transformers_optimizer(0), "kept")
    ],
    "onnxruntime.transformers optimizer": [
        After(tools.transformers_optimizer(1), "dense"),
        After(tools.transformers_optimizer(2), "dense", again=2),
        After(tools.transformers_optimizer(99), "dense", again=2),
    ],
    "symbolic_shape_infer": [After(tools.on_model(tools.symbolic_shape_infer), "kept")],
    "make_dynamic_shape_fixed": [After(tools.on_model(tools.fixed_shape), "kept")],
    "ONNX Runtime, optimized model saved with the library": [
        After(tools.saved_by_onnxruntime(level, library=True), "bare") for level in tools.LEVELS
    ],
    "ONNX Runtime, optimized model saved without it": [
        After(tools.saved_by_onnxruntime(level, library=False), "dense", again=again)
        for level, again in zip(tools.LEVELS, (0, 3, 2, 2, 2), strict=True)
    ],
    "`.ort` format, `--custom_op_library`": [
        After(tools.ort_format(*tools.with_library()), "bare", again=None)
    ],
    "`.ort` format": [After(tools.ort_format(), "dense", again=None)],
}


@dataclass(frozen=True)
class Before:
    """What an export makes of a file with three sparse layers that went through a tool.

    Of these, at least ``condensed`` are condensed, and each of the others has a line in the report
    that says ``left``. ``refused`` is what the export says where it writes nothing.
    """

    tool: tools.Tool
    condensed: int = 3
    left: str = ""
    refused: str = ""


BEFORE = {
    "onnxsim": [Before(tools.onnxsim())],
    "onnxslim": [Before(tools.onnxslim)],
    "onnxoptimizer": [Before(tools.on_model(tools.onnxoptimizer))],
    "onnxscript optimizer": [Before(tools.onnxscript_optimizer())],
    "onnx version converter": [Before(tools.version_converter(n)) for n in (17, 21)],
    "quantize_dynamic": [Before(tools.quantize_dynamic, 2, "dynamically quantized inputs")],
    "quantize_static": [Before(tools.quantize_static(form)) for form in ("QDQ", "QOperator")],
    "quant_pre_process": [Before(tools.quant_pre_process())],
    "MatMulNBits quantizer": [
        Before(tools.quantize_weights_to_4_bits, 1, "com.microsoft::MatMulNBits reads it")
    ],
    "float16 converters": [
        Before(tools.float16()),
        Before(tools.float16(keep_io_types=True)),
        Before(tools.float16_of_common(keep_io_types=True)),
    ],
    "onnxruntime.transformers optimizer": [
        Before(tools.transformers_optimizer(0)),
        Before(tools.transformers_optimizer(1)),
        Before(tools.transformers_optimizer(2), 2, "com.microsoft::Fused"),
        Before(tools.transformers_optimizer(99), 2, "com.microsoft.nchwc::Conv reads it"),
    ],
    "ONNX Runtime, optimized model saved": [
        Before(tools.saved_by_onnxruntime("ENABLE_BASIC", library=False)),
        Before(
            tools.saved_by_onnxruntime("ENABLE_EXTENDED", library=False),
            2,
            "com.microsoft::Fused",
        ),
        Before(
            tools.saved_by_onnxruntime("ENABLE_ALL", library=False),
            2,
            "com.microsoft.nchwc::Conv reads it",
        ),
    ],
    "`.ort` format": [Before(tools.ort_format(), refused="not an ONNX model")],
}


def _cases(table: dict[str, list[After]] | dict[str, list[Before]]) -> list[pytest.param]:
    return [
        pytest.param(case, id=f"{row} {at}", marks=[FORMAT] if row.startswith("`.ort`") else [])
        for row, cases in table.items()
        for at, case in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tools.write_source(tmp_path_factory.mktemp("tools") / "in.onnx")


@pytest.fixture(scope="module")
def exported(source: Path) -> Path:
    path = source.with_name("model.onnx")
    convert(source, path, policy="condensed")
    return path


def _is_ort(row_tool: tools.Tool) -> bool:
    return "ort_format" in row_tool.__qualname__


def _condensed_types(path: Path) -> list[str]:
    return sorted(kind for kind in node_types(path) if kind in tools.OPS)


def _functions(path: Path) -> set[str]:
    functions = {one.name for one in onnx.load(path).functions if one.domain == "ai.fanin"}
    return functions & set(tools.OPS)


@pytest.mark.parametrize("case", _cases(AFTER))
def test_file_after_a_tool(case: After, source: Path, exported: Path, tmp_path: Path):
    path = tmp_path / ("out.ort" if _is_ort(case.tool) else "out.onnx")
    case.tool(exported, path)
    if path.suffix == ".onnx":
        there = [] if case.becomes == "dense" else ["CondensedConv", *2 * ["CondensedGemm"]]
        assert _condensed_types(path) == there
        with_functions = set(tools.OPS) if case.becomes in ("kept", "broken") else set()
        assert _functions(path) == with_functions
    expected = tools.run(source, library=False)
    for library in (False, True):
        if case.becomes == "broken" or (case.becomes == "bare" and not library):
            with pytest.raises(Exception, match=r"CondensedConv|float"):
                tools.run(path, library=library)
            continue
        actual = tools.run(path, library=library)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=case.tolerance * scale)
    if case.again is not None:
        convert(path, tmp_path / "again.onnx", policy="condensed")
        done = _condensed_types(tmp_path / "again.onnx")
        assert len(done) >= case.again
        assert _functions(tmp_path / "again.onnx") == set(done)


@pytest.mark.parametrize("case", _cases(BEFORE))
def test_file_before_an_export(case: Before, source: Path, tmp_path: Path):
    path = tmp_path / "tool.onnx"
    case.tool(source, path)
    if case.refused:
        with pytest.raises(ExportError, match=case.refused):
            convert(path, tmp_path / "out.onnx", policy="condensed")
        return
    report = convert(path, tmp_path / "out.onnx", policy="condensed")
    sparse = [layer for layer in report.layers if layer.sparsity >= 0.5]
    left = [layer.reason for layer in sparse if layer.decision == "dense"]
    assert len(sparse) == 3
    assert len(left) <= 3 - case.condensed
    assert all(case.left in reason for reason in left)


def test_inlined_and_simplified_file_is_condensed_again(exported: Path, tmp_path: Path):
    tools.on_model(tools.inline)(exported, tmp_path / "inlined.onnx")
    tools.onnxsim()(tmp_path / "inlined.onnx", tmp_path / "simple.onnx")
    convert(tmp_path / "simple.onnx", tmp_path / "out.onnx", policy="condensed")
    assert len(_condensed_types(tmp_path / "out.onnx")) == 3


def test_float16_converter_told_to_block_the_op_keeps_its_values_float32(
    exported: Path, tmp_path: Path
):
    tools.float16(keep_io_types=True, **BLOCKED)(exported, tmp_path / "out.onnx")
    graph = onnx.load(tmp_path / "out.onnx").graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in tools.OPS:
            cast = producers[node.input[1]]
            assert cast.op_type == "Cast"
            assert types[cast.input[0]] == onnx.TensorProto.FLOAT
        if node.name == "head":
            assert types[node.input[1]] == onnx.TensorProto.FLOAT16


def test_symbolic_shape_infer_knows_the_shapes(exported: Path):
    values = tools.symbolic_shape_infer(onnx.load(exported)).graph.value_info
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in values
    }
    assert (shapes["a"], shapes["d"]) == (["batch", 64], ["batch", 40])


def test_names_are_readable_and_unique(exported: Path):
    graph = onnx.load(exported).graph
    kinds = [node.name for node in graph.node]
    assert kinds == ["conv", "pool", "flatten", "fc1", "act", "fc2", "head"]
    names = [tensor.name for tensor in graph.initializer]
    assert len(set(names)) == len(names)
    assert {"w1.values", "w1.indices", "w1.bias", "w1.rows"} <= set(names)


@pytest.mark.parametrize(
    ("heading", "table"), [("After an export", AFTER), ("Before an export", BEFORE)]
)
def test_every_row_of_the_documented_tables_has_its_tests(heading: str, table: dict[str, object]):
    text = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    chapter = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in chapter.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(table)
