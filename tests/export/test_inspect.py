from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fanin.export import CondensedWeight, ExportError
from fanin.export.onnx_inspect import inspect
from fanin.export.onnx_op import condensed_layer_model, dense_layer_model

WEIGHT = CondensedWeight.from_dense(np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0]], np.float32))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_node_is_listed_with_what_it_stores(tmp_path: Path):
    inspection = inspect(saved(condensed_layer_model(WEIGHT, 1, clip_min=0), tmp_path))
    (layer,) = inspection.layers
    assert (layer.name, layer.shape, layer.active, layer.fan_in) == ("layer", (3, 3), 2, 2)
    assert (layer.padding, layer.bytes_condensed) == (1, WEIGHT.nbytes)
    assert layer.sparsity == pytest.approx(6 / 9)
    assert layer.reason == "clip [0, inf]"
    assert inspection.runs_without_library
    assert json.loads(inspection.to_json())["layers"][0]["name"] == "layer"


def test_table_fits_80_columns(tmp_path: Path):
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as capture:
        console.print(inspect(saved(condensed_layer_model(WEIGHT, 1), tmp_path)).to_rich_table())
    assert "1 condensed node, opset 20" in capture.get()
    assert max(map(len, capture.get().splitlines())) <= 80


def test_file_without_its_function_is_said_to_need_the_library(tmp_path: Path):
    model = condensed_layer_model(WEIGHT, 1)
    del model.functions[:]
    assert not inspect(saved(model, tmp_path)).runs_without_library


def test_dense_file_has_no_condensed_layers(tmp_path: Path):
    inspection = inspect(saved(dense_layer_model(WEIGHT, 1), tmp_path))
    assert inspection.layers == ()
    assert inspection.runs_without_library


def test_node_that_breaks_the_format_is_named(tmp_path: Path):
    model = condensed_layer_model(WEIGHT, 1)
    tensor = next(t for t in model.graph.initializer if t.name == "indices")
    tensor.CopyFrom(numpy_helper.from_array(np.full((2, 2), 9, np.uint16), "indices"))
    with pytest.raises(
        ExportError, match=r"\(CondensedGemm\): indices\[0, 0\] is 9, in_features is 3"
    ):
        inspect(saved(model, tmp_path))


def test_weights_that_are_no_constants_are_named(tmp_path: Path):
    model = condensed_layer_model(WEIGHT, 1)
    kept = [t for t in model.graph.initializer if t.name != "values"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    with pytest.raises(ExportError, match=r"node 'layer' \(CondensedGemm\): values is missing or"):
        inspect(saved(model, tmp_path))


@pytest.mark.parametrize("content", [b"\x00\xff no model", b""])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="is not an ONNX model or is damaged"):
        inspect(path)


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        inspect(tmp_path / "nothing.onnx")


def test_missing_data_file_is_named(tmp_path: Path):
    path = tmp_path / "model.onnx"
    onnx.save(
        condensed_layer_model(WEIGHT, 1),
        path,
        save_as_external_data=True,
        location="weights.data",
        size_threshold=0,
    )
    (tmp_path / "weights.data").unlink()
    with pytest.raises(ExportError, match=r"data file is missing.*weights\.data"):
        inspect(path)
