"""Layers of run folders and ONNX files for the benchmarks."""

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

from fanin.deploy.bench import BenchLayerSpec, bench_layer
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.deploy.bench.suites.trained_layer import TrainedLayerError, load_trained_layer
from fanin.export.onnx_op import condensed_layer_model


@pytest.fixture
def weight():
    return random_sparse_layer("clustered", np.random.default_rng(0), 24, 10, 7, 5)


@pytest.fixture
def run(weight, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    dense = weight.to_dense()
    tensors = {
        "fc1.weight": dense,
        "fc1.weight.mask": (dense != 0).astype(np.uint8),
        "conv.weight": np.ones((2, 3, 1, 1), np.float32),
        "conv.weight.mask": np.ones((2, 3, 1, 1), np.uint8),
        "fc2.weight": np.ones((4, 10), np.float32),
    }
    save_file(tensors, folder / "weights.safetensors")
    return folder


@pytest.fixture
def file(weight, tmp_path):
    onnx.save(condensed_layer_model(weight, None), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_run_folder_gives_its_masked_parameters(run, weight):
    layer = load_trained_layer(run, "fc1.weight")
    np.testing.assert_array_equal(layer.weight.to_dense(), weight.to_dense())
    assert layer.title == "fc1.weight of run"
    assert load_trained_layer(run, "conv.weight").weight.in_features == 3


def test_an_onnx_file_gives_its_only_condensed_node(file, weight):
    layer = load_trained_layer(file)
    np.testing.assert_array_equal(layer.weight.values, weight.values)
    np.testing.assert_array_equal(layer.weight.bias, weight.bias)
    assert layer.title == "layer of net.onnx"


def test_a_layer_that_is_not_there_is_answered_with_those_that_are(run, file):
    with pytest.raises(TrainedLayerError, match=r"conv\.weight, fc1\.weight; name one with"):
        load_trained_layer(run)
    with pytest.raises(TrainedLayerError, match="no sparse layer 'fc2'; there are: layer"):
        load_trained_layer(file, "fc2")


def test_what_holds_no_weights_is_said(tmp_path):
    with pytest.raises(TrainedLayerError, match="fanin train --resume"):
        load_trained_layer(tmp_path)
    with pytest.raises(TrainedLayerError, match="does not exist"):
        load_trained_layer(tmp_path / "absent.onnx")
    (tmp_path / "weights.safetensors").write_bytes(b"garbage")
    with pytest.raises(TrainedLayerError, match="does not hold a run's weights"):
        load_trained_layer(tmp_path)


def test_a_trained_layer_is_measured_beside_made_up_ones_of_its_sizes(file):
    layer = load_trained_layer(file)
    spec = BenchLayerSpec.of_trained(layer, ("random", "clustered"), rounds=2, turn=1e-3)
    result = bench_layer(spec)
    assert [case.facts["mask"] for case in result.cases] == ["random", "clustered", "trained"]
    for case in result.cases:
        facts = case.facts
        assert (facts["fan_in"], facts["active"]) == (5, 7)
        assert facts["sparsity_achieved"] == pytest.approx(1 - 35 / 240)
        assert facts["padding"] >= 1
        assert case.engine("condensed").excluded is None
    assert result.spec["trained"] == "layer of net.onnx"


def test_sizes_that_are_not_the_layers_are_refused(file):
    layer = load_trained_layer(file)
    with pytest.raises(ValueError, match="use of_trained"):
        BenchLayerSpec(30, 20, (0.5,), masks=("trained",), trained=layer)
