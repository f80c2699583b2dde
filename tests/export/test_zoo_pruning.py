"""What tools/foreign_zoo.py prunes beside fanin prune."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from .onnx_models import node, write_model

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (64, 96)).astype(np.uint8)
FLOATS = RNG.standard_normal((64, 96)).astype(np.float32)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "_prune_onnx.py"
    spec = importlib.util.spec_from_file_location("_prune_onnx", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_bytes_become_their_zero_point_in_each_column(tool: ModuleType, tmp_path: Path):
    nodes = [
        node("DynamicQuantizeLinear", ["x"], "a"),
        node("MatMulInteger", ["a", "w", "", "zero"]),
    ]
    nodes[0].output.extend(["scale", "az"])
    arrays = {"w": BYTES, "zero": np.array(131, np.uint8)}
    path = write_model(tmp_path / "in.onnx", nodes, arrays, x=(1, 64), y=None)
    assert tool.prune_others(path, 0.9) == 1
    found = weights_of(path)["w"].astype(int) - 131
    before = BYTES.astype(int) - 131
    for column, whole in zip(found.T, before.T, strict=True):
        kept = np.flatnonzero(column)
        assert len(kept) == 6
        assert (column[kept] == whole[kept]).all()
        assert np.abs(column[kept]).min() >= np.abs(np.delete(whole, kept)).max()


def test_bytes_of_a_recurrent_layer_keep_equally_many(tool: ModuleType, tmp_path: Path):
    arrays = {
        "w": RNG.integers(-127, 128, (1, 48, 128)).astype(np.int8),
        "r": RNG.integers(-127, 128, (1, 32, 128)).astype(np.int8),
        "zero": np.zeros((1, 128), np.int8),
        "scale": np.ones((1, 128), np.float32),
    }
    inputs = ["x", "w", "r", "", "", "", "", "", "scale", "zero", "scale", "zero"]
    nodes = [node("DynamicQuantizeLSTM", inputs, hidden_size=32, domain="com.microsoft")]
    path = write_model(tmp_path / "in.onnx", nodes, arrays, x=(5, 1, 48), y=None)
    assert tool.prune_others(path, 0.75) == 2
    found = weights_of(path)
    for name, kept in (("w", 12), ("r", 8)):
        stays = found[name] != 0
        assert (stays.sum(axis=1) <= kept).all()
        assert (stays.sum(axis=1) >= kept - 1).all()  # one of those may be 0 itself
        assert (found[name][stays] == arrays[name][stays]).all()


def test_what_fanin_prune_prunes_stays(tool: ModuleType, tmp_path: Path):
    nodes = [node("MatMul", ["x", "w"])]
    path = write_model(tmp_path / "in.onnx", nodes, {"w": FLOATS}, x=(1, 64), y=(1, 96))
    assert tool.prune_others(path, 0.9) == 0
    assert (weights_of(path)["w"] == FLOATS).all()
