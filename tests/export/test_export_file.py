"""What the exported file of a small MLP holds and computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.export.onnx_inspect import inspect
from fanin.ort_ops import register
from fanin.ort_ops.format.condensed import CondensedWeight

from .._waiting import PATIENCE
from .conftest import Exported, export_condensed, sparse_mlp

BATCHES = [1, 3, 64]


def outputs(exported: Exported, x: torch.Tensor) -> np.ndarray:
    exported.model.eval()
    with torch.no_grad():
        y = exported.model(x).numpy()
    exported.model.train()
    return y


def session(path: Path, *, library: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if library:
        register(options)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("library", [False, True])
def test_runtime_gives_torchs_outputs_for_any_batch(mlp: Exported, library: bool):
    run = session(mlp.path, library=library)
    for batch in BATCHES:
        x = torch.randn(batch, 40, generator=torch.Generator().manual_seed(batch))
        assert_close(run.run(None, {"input": x.numpy()})[0], outputs(mlp, x))


def test_reference_evaluator_gives_torchs_outputs(mlp: Exported):
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(9))
    evaluator = ReferenceEvaluator(str(mlp.path))
    assert_close(evaluator.run(None, {"input": x.numpy()})[0], outputs(mlp, x))


def test_dense_baseline_gives_torchs_outputs_and_holds_no_op_of_ours(mlp: Exported):
    model = onnx.load(mlp.report.dense_path)
    assert {node.domain for node in model.graph.node} == {""}
    assert [entry.domain for entry in model.opset_import] == [""]
    assert not model.functions
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(8))
    run = session(Path(mlp.report.dense_path), library=False)
    assert_close(run.run(None, {"input": x.numpy()})[0], outputs(mlp, x))


def test_graph_holds_one_node_for_each_sparse_layer_with_its_activation(mlp: Exported):
    graph = onnx.load(mlp.path).graph
    assert [node.op_type for node in graph.node] == ["CondensedGemm", "CondensedGemm", "Gemm"]
    attributes = [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for node in graph.node[:2]
    ]
    assert attributes == [
        {"in_features": 40, "out_features": 96, "clip_min": 0.0, "clip_max": np.inf},
        {"in_features": 96, "out_features": 64, "clip_min": 0.0, "clip_max": 6.0},
    ]
    assert [node.name for node in graph.node[:2]] == ["0", "2"]
    assert {tensor.name for tensor in graph.initializer} == {
        *(f"{layer}.{part}" for layer in "02" for part in ("values", "indices", "rows", "bias")),
        "0.no_residual",
        "5.weight",
        "5.bias",
    }


def test_stored_weights_are_those_under_the_mask(mlp: Exported):
    graph = onnx.load(mlp.path).graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for layer, shape in (("0", (96, 40)), ("2", (64, 96))):
        parts = {part: tensors[f"{layer}.{part}"] for part in ("values", "indices", "rows", "bias")}
        stored = CondensedWeight(**parts, out_features=shape[0], in_features=shape[1])
        weight = mlp.model.get_parameter(f"{layer}.weight").detach().numpy()
        np.testing.assert_array_equal(stored.to_dense(), weight)
        assert stored.indices.dtype == np.uint16
        assert stored.density == pytest.approx(mlp.masks[f"{layer}.weight"].float().mean().item())


def test_file_is_of_the_promised_versions_and_passes_the_checks(mlp: Exported):
    model = onnx.load(mlp.path)
    assert model.ir_version == 9
    assert {entry.domain: entry.version for entry in model.opset_import} == {
        "": 20,
        "ai.fanin": 1,
    }
    assert [(f.domain, f.name) for f in model.functions] == [("ai.fanin", "CondensedGemm")]
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


UNREGISTERED = """
import onnx, sys
assert not onnx.defs.has("CondensedGemm", domain="ai.fanin")
model = onnx.load(sys.argv[1])
onnx.checker.check_model(model, full_check=True)
onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
"""


def test_file_passes_the_checks_of_an_onnx_that_never_heard_of_us(mlp: Exported):
    subprocess.run([sys.executable, "-c", UNREGISTERED, mlp.path], check=True, timeout=PATIENCE)


def test_every_value_has_a_shape_with_the_batch_first(mlp: Exported):
    graph = onnx.load(mlp.path).graph
    values = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}
    for name in ["input", *(output for node in graph.node for output in node.output)]:
        first, second = values[name].type.tensor_type.shape.dim
        assert first.dim_param == "batch"
        assert second.dim_value in (40, 96, 64, 10)
    assert [v.name for v in graph.output] == ["output"]


def test_without_library_the_runtime_is_left_with_dense_operators(mlp: Exported, tmp_path: Path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(mlp.path, options, providers=["CPUExecutionProvider"])
    found = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert found == ["Gemm", "Clip", "Gemm", "Clip", "Gemm"]


def test_file_says_nothing_about_the_machine_that_wrote_it(mlp: Exported):
    content = mlp.path.read_bytes()
    for trace in (b"site-packages", b".py", str(Path.home()).encode(), b"pkg.torch"):
        assert trace not in content


def test_report_states_what_became_of_each_layer(mlp: Exported):
    first, second, head = mlp.report.layers
    assert (first.name, first.decision, first.nodes) == ("0.weight", "condensed", ("0",))
    assert (first.shape, first.active, first.fan_in, first.padding) == ((96, 40), 92, 5, 0)
    assert first.sparsity == pytest.approx(1 - 92 * 5 / (96 * 40))
    counts = mlp.masks["2.weight"].sum(dim=1)
    assert second.fan_in == counts.max()
    assert second.padding == ((counts > 0) * (counts.max() - counts)).sum()
    assert (head.decision, head.reason, head.bytes_condensed) == ("dense", "no mask", None)
    assert head.bytes_dense == 4 * (10 * 64 + 10)
    assert mlp.report.fused == ("Relu into 0", "Clip into 2")


def test_report_states_parity_and_true_sizes(mlp: Exported):
    report = mlp.report
    assert [check.engine.split(" ", 2)[2] for check in report.parity] == [
        "without library",
        "with library",
    ]
    assert not report.not_checked
    assert all(check.batches == (2, 1, 3) for check in report.parity)
    assert 0 <= report.parity_error <= 1e-5
    assert report.file_bytes == mlp.path.stat().st_size
    assert report.dense_file_bytes == Path(report.dense_path).stat().st_size
    assert report.dense_file_measured
    assert json.loads(report.to_json())["size_ratio"] == report.size_ratio < 1


def test_report_prints_every_layer_and_figure(mlp: Exported):
    from rich.console import Console

    text = str(mlp.report)
    for piece in (
        "92/96",
        "condensed: by mask",
        "dense: no mask",
        "relative error",
        "ratio",
        "fused: Relu",
    ):
        assert piece in text
    console = Console(width=80)
    with console.capture() as capture:
        console.print(mlp.report.to_rich_table(80))
    lines = capture.get().splitlines()
    assert [line.split()[0] for line in lines if "×" in line] == ["0", "2", "5"]
    assert max(map(len, lines)) <= 80


def test_inspect_finds_the_same_layers_in_the_file(mlp: Exported):
    inspection = inspect(mlp.path)
    assert (inspection.opset, inspection.ir_version) == (20, 9)
    assert inspection.runs_without_library
    for found, reported in zip(inspection.layers, mlp.report.condensed_layers, strict=True):
        assert found.name == reported.nodes[0]
        for field in ("shape", "active", "fan_in", "padding", "bytes_dense", "bytes_condensed"):
            assert getattr(found, field) == getattr(reported, field)
        assert found.sparsity == pytest.approx(reported.sparsity)
    assert [layer.reason for layer in inspection.layers] == ["clip [0, inf]", "clip [0, 6]"]


def test_model_is_untouched_and_its_mode_kept(mlp: Exported):
    fresh, _ = sparse_mlp()
    for (name, before), (_, after) in zip(
        fresh.state_dict().items(), mlp.model.state_dict().items(), strict=True
    ):
        assert torch.equal(before, after), name
    assert [type(module) for module in fresh] == [type(module) for module in mlp.model]
    assert mlp.model.training
    assert all(parameter.requires_grad for parameter in mlp.model.parameters())


def test_second_export_writes_the_same_bytes(mlp: Exported, tmp_path: Path):
    model, masks = sparse_mlp()
    report = export_condensed(model, torch.randn(1, 40), tmp_path / "again.onnx", masks=masks)
    assert (tmp_path / "again.onnx").read_bytes() == mlp.path.read_bytes()
    # Computed from the layers, since no baseline was asked for.
    assert not report.dense_file_measured
    assert report.dense_path is None
    assert report.dense_file_bytes == pytest.approx(mlp.report.dense_file_bytes, rel=0.15)
