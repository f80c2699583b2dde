from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fanin import ort_ops
from fanin.export import CondensedWeight, ExportError
from fanin.export.onnx_op import condensed_layer_model
from fanin.export.verify import Case, Reference, check_parity, check_structure

WEIGHT = CondensedWeight.from_dense(np.array([[2, 0, -1], [0, 0, 0], [0, 3, 0]], np.float32))
X = np.array([[1, 2, 3], [-5, 0.5, 4]], np.float32)
Y = X @ WEIGHT.to_dense().T


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(condensed_layer_model(WEIGHT, None), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def engines(path: Path) -> tuple[list[str], tuple[str, ...]]:
    checks, missing = check_parity(path, Reference("torch", [Case((X,), (Y,))]))
    assert all(check.batches == (2,) and check.relative_error <= 1e-6 for check in checks)
    return [check.engine for check in checks], missing


def test_runtime_is_tried_without_and_with_the_library(path: Path):
    found, missing = engines(path)
    assert [name.split()[-2] for name in found] == ["without", "with"]
    assert missing == ()


def test_without_runtime_the_reference_evaluator_runs_and_that_is_said(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found, missing = engines(path)
    assert found == [f"onnx {onnx.__version__} reference"]
    assert missing == ("onnxruntime: not installed",)


def test_library_that_cannot_be_registered_is_said(path, monkeypatch):
    def unbuilt(options):  # noqa: ARG001
        raise FileNotFoundError("the library is not built")

    monkeypatch.setattr(ort_ops, "register", unbuilt)
    found, missing = engines(path)
    assert [name.split()[-2] for name in found] == ["without"]
    assert len(missing) == 1
    assert missing[0].endswith("with library: the library is not built")


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        (Y + np.float32(1e-3), r"output 0 at batch 2 in .* differs from torch by 0\.001"),
        (Y.astype(np.float64), r"is float32 \[2, 3\], torch gives float64 \[2, 3\]"),
        (Y[:1], r"is float32 \[2, 3\], torch gives float32 \[1, 3\]"),
        (Y * np.float32(np.nan), "differs from torch by nan"),
    ],
)
def test_other_outputs_than_the_models_are_refused(path: Path, outputs, sentence: str):
    with pytest.raises(ExportError, match=sentence):
        check_parity(path, Reference("torch", [Case((X,), (outputs,))]))


def test_outputs_of_zeros_are_compared_absolutely(path: Path):
    zeros = np.zeros((1, 3), np.float32)
    checks, _ = check_parity(path, Reference("torch", [Case((zeros,), (zeros,))]))
    assert {check.relative_error for check in checks} == {0.0}


def test_tolerance_grows_with_the_sources_own_error(path: Path):
    off = Case((X,), (Y + np.float32(1e-3),))
    (check, _), _ = check_parity(path, Reference("torch", [off], noise=1e-4))
    assert check.tolerance == pytest.approx(8e-4)
    with pytest.raises(ExportError, match=r"over the tolerance of 1.6e-05 relative"):
        check_parity(path, Reference("torch", [off], noise=2e-6))


def test_what_the_runtime_makes_of_the_original_is_right_as_well(path: Path):
    off = Y + np.float32(1e-3)
    for outputs, optimized in ((Y, off), (off, Y)):
        case = Case((X,), (outputs,), (optimized,))
        for check in check_parity(path, Reference("the original", [case]))[0]:
            assert check.relative_error < 1e-6
    with pytest.raises(ExportError, match=r"differs from the original by 0.001 "):
        check_parity(path, Reference("the original", [Case((X,), (off,), (off,))]))


def test_each_output_has_the_tolerance_of_what_it_is_computed_in():
    reference = Reference(
        "torch",
        [],
        noises=(0.0, 0.0, 0.0, 1e-3),
        precisions=("float32", "float16", "bfloat16", "float16"),
    )
    allowed = [reference.tolerance(position, np.dtype(np.float32)) for position in range(4)]
    assert allowed == [1e-5, 2e-3, 1.6e-2, 8e-3]
    assert reference.tolerance(0, np.dtype(np.float16)) == 2e-3


def test_value_without_a_shape_is_named(tmp_path: Path):
    model = condensed_layer_model(WEIGHT, None)
    model.graph.node[0].name = "fc1"
    model.graph.node.append(helper.make_node("Neg", ["y"], ["z"], name="after"))
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match=r"output y of node fc1 \(CondensedGemm\) has no shape"):
        check_structure(tmp_path / "model.onnx")


def test_model_that_onnx_refuses_is_refused(tmp_path: Path):
    model = condensed_layer_model(WEIGHT, None)
    model.graph.node[0].input[0] = "unknown"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match=r"onnx refuses the exported model.*unknown"):
        check_structure(tmp_path / "model.onnx")


def test_file_that_the_runtime_does_not_load_is_refused(tmp_path: Path):
    model = condensed_layer_model(WEIGHT, None)
    model.graph.node[0].op_type = "Unheard"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match=r"does not load the exported model.*Unheard"):
        check_parity(tmp_path / "model.onnx", Reference("torch", [Case((X,), (Y,))]))
