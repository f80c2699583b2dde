"""A convolutional network trained with SRigL: its masks decide what the file holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from fanin.export import export, inspect
from fanin.ort_ops import register
from fanin.trainer import load_recipe, load_run, train
from fanin.trainer.models import CNN


def test_trained_convolutions_are_exported_by_their_masks(tmp_path: Path):
    config = load_recipe("mlp-digits-srigl90")
    config = replace(
        config,
        model=CNN(channels=(16, 32, 32)),
        method=replace(config.method, sparsity=0.8),
        training=replace(config.training, epochs=1),
    )
    folder = tmp_path / "run"
    train(config, folder, progress=False)
    run = load_run(folder)
    report = export(folder, None, tmp_path / "model.onnx", policy="condensed", min_sparsity=0.3)
    convolutions = {name for name in run.masks if name.startswith("conv")}
    assert convolutions
    layers = {layer.name: layer for layer in report.layers}
    for name in convolutions:
        counts = run.masks[name].flatten(1).sum(dim=1)
        sparsity = 1 - float(run.masks[name].float().mean())
        assert abs(layers[name].sparsity - sparsity) < 1e-6
        assert layers[name].active == torch.count_nonzero(counts)
        wanted = "condensed" if sparsity >= 0.3 else "dense"
        assert layers[name].decision == wanted
    assert {"conv2", "conv3"} <= {layer.name for layer in inspect(report.path).layers}
    options = onnxruntime.SessionOptions()
    register(options)
    session = onnxruntime.InferenceSession(report.path, options)
    x = torch.rand(5, *run.example_input.shape[1:])
    with torch.no_grad():
        expected = run.model(x).numpy()
    (port,) = session.get_inputs()
    actual = session.run(None, {port.name: x.numpy()})[0]
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())
