"""ONNX files with more weights than protobuf can hold."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin.export import convert
from fanin.ort_ops import register

pytestmark = pytest.mark.slow

WIDTH, DENSE = 4096, 32
LAYER_BYTES = 4 * WIDTH * WIDTH


def weight_of(number: int) -> np.ndarray:
    """float32 weights of one layer; only the last one is sparse."""
    rng = np.random.default_rng(number)
    weight = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
    if number == DENSE:
        weight[rng.random(weight.shape, np.float32) < 0.95] = 0
        weight[:, 0] = 0
    return weight


def write_large(path: Path) -> None:
    """Write layer by layer, with one layer in memory at a time."""
    tensors, nodes = [], []
    with (path.parent / "weights.bin").open("wb") as data:
        for number in range(DENSE + 1):
            weight = weight_of(number)
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=weight.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "weights.bin", "offset": data.tell(), "length": weight.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            data.write(weight.tobytes())
            names = ["x" if number == 0 else f"h{number - 1}", f"w{number}"]
            nodes.append(helper.make_node("MatMul", names, [f"h{number}"], name=f"fc{number}"))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(f"h{DENSE}", TensorProto.FLOAT, ["batch", WIDTH])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_file_with_2_2_gb_of_external_data_is_converted_to_one_of_over_2_gb(tmp_path: Path):
    source = tmp_path / "in" / "large.onnx"
    source.parent.mkdir()
    write_large(source)
    before = {path.name: file_hash(path) for path in source.parent.iterdir()}
    assert (source.parent / "weights.bin").stat().st_size > 2**31

    report = convert(source, tmp_path / "out.onnx", policy="condensed")

    assert {path.name: file_hash(path) for path in source.parent.iterdir()} == before
    assert report.file_bytes > 2**31
    assert Path(report.data_path).stat().st_size > 2**31
    decisions = [layer.decision for layer in report.layers]
    assert decisions == ["dense"] * DENSE + ["condensed"]
    assert report.layers[-1].active == WIDTH - 1
    onnx.checker.check_model(report.path, full_check=True)

    x = np.random.default_rng(99).standard_normal((2, WIDTH), np.float32)
    expected = x.astype(np.float64)
    for number in range(DENSE + 1):
        expected = expected @ weight_of(number)
    options = onnxruntime.SessionOptions()
    # Packed copies of the weights would take as much memory again.
    options.add_session_config_entry("session.disable_prepacking", "1")
    register(options)
    session = onnxruntime.InferenceSession(report.path, options)
    (actual,) = session.run(None, {"x": x})
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
