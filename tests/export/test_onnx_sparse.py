"""Sparse initializers: made dense where they are sound, named where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin.export import ExportError, convert, inspect, plan_conversion

VALUES = np.array([1, 2, 3], np.float32)


def model_with(path: Path, indices: np.ndarray, dims: list[int]) -> Path:
    """A MatMul whose weight is a sparse initializer of three values."""
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(VALUES, "w"), numpy_helper.from_array(indices, "places"), dims
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 8])],
        sparse_initializer=[sparse],
    )
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    return path


@pytest.mark.parametrize(
    "indices", [np.array([0, 9, 63]), np.array([[0, 0], [1, 1], [7, 7]])], ids=["linear", "axes"]
)
def test_both_forms_of_indices_give_the_same_weight(tmp_path, indices):
    report = convert(
        model_with(tmp_path / "in.onnx", indices, [8, 8]), tmp_path / "out.onnx", policy="condensed"
    )
    assert report.layers[0].active == 3
    assert inspect(tmp_path / "out.onnx").layers[0].fan_in == 1
    assert "w was a sparse tensor, read as a dense one" in report.notes


@pytest.mark.parametrize(
    ("indices", "dims", "reason"),
    [
        (np.array([0, 5, 64]), [8, 8], "an index lies outside of its shape"),
        (np.array([0, 5, -1]), [8, 8], "an index lies outside of its shape"),
        (np.array([[0, 0], [1, 1], [8, 0]]), [8, 8], "an index lies outside of its shape"),
        (np.array([[0, 0], [1, 1], [0, -1]]), [8, 8], "an index lies outside of its shape"),
        (np.array([[0, 0, 0]] * 3), [8, 8], r"3 values and indices of shape \(3, 3\)"),
        (np.array([0, 5]), [8, 8], r"3 values and indices of shape \(2,\)"),
        (np.array([0, 0, 7]), [8, 8], "two of its values have the same index"),
        (np.array([0.0, 5, 7], np.float32), [8, 8], "it has float32 indices"),
        (np.array([0, 5, 7]), [1 << 20, 1 << 18], "takes 1.1e.12 bytes when dense"),
        (np.array([0, 5, 7]), [1 << 62, 1 << 62], "bytes when dense"),
        (np.array([0, 5, 7]), [-8, 8], "has no places"),
        (np.array([0, 5, 7]), [], "has no places"),
    ],
)
def test_what_breaks_the_rules_is_refused_with_file_and_name(tmp_path, indices, dims, reason):
    source = model_with(tmp_path / "in.onnx", indices, dims)
    for read in (plan_conversion, lambda path: convert(path, tmp_path / "out.onnx")):
        with pytest.raises(ExportError, match=rf"in\.onnx: the sparse tensor 'w' .*{reason}"):
            read(source)
    assert not (tmp_path / "out.onnx").exists()
