"""From a run folder of the trainer to a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from fanin.export import ExportError
from fanin.export.onnx_inspect import inspect
from fanin.ort_ops import register
from fanin.trainer import RunFolderError, load_recipe, load_run, train
from fanin.trainer.models import MLP

from .conftest import export_condensed


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = load_recipe("mlp-digits-srigl90")
    small = replace(config, model=MLP(hidden=(96, 64)), training=replace(config.training, epochs=2))
    folder = tmp_path_factory.mktemp("runs") / "srigl90"
    train(small, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def report(run_folder: Path):
    return export_condensed(run_folder, None, run_folder.parent / "model.onnx")


def test_layers_are_those_of_the_runs_masks(run_folder: Path, report):
    run = load_run(run_folder)
    assert {layer.name for layer in report.condensed_layers} == set(run.masks)
    for layer in report.condensed_layers:
        counts = run.masks[layer.name].sum(dim=1)
        assert layer.active == torch.count_nonzero(counts)
        # Constant fan-in, so nothing is padded.
        assert layer.fan_in == counts.max()
        assert layer.padding == 0
        assert layer.reason == "by mask"
    assert [layer.name for layer in report.layers if layer.decision == "dense"] == ["head.weight"]


def test_file_holds_the_trained_weights_and_runs_with_the_library(run_folder: Path, report):
    run = load_run(run_folder)
    assert [node.op_type for node in onnx.load(report.path).graph.node] == [
        "Reshape",
        "CondensedGemm",
        "CondensedGemm",
        "Gemm",
    ]
    assert [layer.name for layer in inspect(report.path).layers] == ["fc1", "fc2"]
    options = onnxruntime.SessionOptions()
    register(options)
    session = onnxruntime.InferenceSession(report.path, options, providers=["CPUExecutionProvider"])
    for batch in (1, 3, 64):
        x = torch.randn(batch, *run.example_input.shape[1:])
        with torch.no_grad():
            expected = run.model(x).numpy()
        (name,) = (port.name for port in session.get_inputs())
        got = session.run(None, {name: x.numpy()})[0]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_unfinished_run_is_refused_and_leaves_no_file(run_folder: Path, tmp_path: Path):
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.toml").write_text((run_folder / "config.toml").read_text())
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RunFolderError, match="--resume"):
        export_condensed(unfinished, None, out / "model.onnx")
    assert not list(out.iterdir())


def test_masks_beside_a_run_folder_are_refused(run_folder: Path, tmp_path: Path):
    with pytest.raises(ExportError, match="a run folder brings its own masks"):
        export_condensed(run_folder, None, tmp_path / "model.onnx", masks={})


def test_no_file_of_the_run_is_an_output(run_folder: Path):
    before = (run_folder / "weights.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"weights\.safetensors belongs to the run; give the mod"):
        export_condensed(run_folder, None, run_folder / "weights.safetensors")
    assert (run_folder / "weights.safetensors").read_bytes() == before


def test_the_baseline_follows_a_link_of_its_own(run_folder: Path, tmp_path: Path):
    (tmp_path / "far").mkdir()
    (tmp_path / "m.dense.onnx").symlink_to(tmp_path / "far" / "baseline.onnx")
    export_condensed(run_folder, None, tmp_path / "m.onnx", dense_baseline=True)
    assert (tmp_path / "m.dense.onnx").is_symlink()
    onnx.checker.check_model(tmp_path / "far" / "baseline.onnx")
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["baseline.onnx"]
    (tmp_path / "m.dense.onnx").unlink()
    (tmp_path / "m.dense.onnx").symlink_to("m.onnx")
    with pytest.raises(ValueError, match=r"m\.dense\.onnx links to .*m\.onnx; remove that link"):
        export_condensed(run_folder, None, tmp_path / "m.onnx", dense_baseline=True)
