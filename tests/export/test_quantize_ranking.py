"""fanin.export.quantize: which layers stay in floats, by what rounding each does to outputs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from fanin.export import ExportError, quantize
from fanin.export.quantizing.float_model import load_float_model
from fanin.export.quantizing.output_error import compare
from fanin.export.quantizing.static import Grid
from fanin.export.quantizing.trial import Trial, rounded_weight

from ._two_layers import (
    BIAS,
    CALIBRATION,
    SAMPLES,
    W1,
    W2,
    constants,
    dense_rows,
    relative,
    two_layers,
)
from .onnx_models import node, run, sparse, write_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return two_layers(tmp_path / "in.onnx")


def test_layers_are_ranked_by_what_each_alone_does_to_the_outputs(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    report = quantize(source, out, calibration=CALIBRATION, policy="condensed")
    errors = {layer.name: layer.error for layer in report.layers}
    assert list(errors.values()) == sorted(errors.values(), reverse=True)
    # Against a float64 model with one layer rounded by hand.
    samples = SAMPLES[:64]
    hidden = np.maximum(SAMPLES.astype(np.float64) @ W1 + BIAS, 0)
    expected = (hidden @ W2)[:64]

    def rounded(x: np.ndarray, all_values: np.ndarray) -> np.ndarray:
        low, high = min(all_values.min(), 0), max(all_values.max(), 0)
        scale = (high - low) / 255
        zero = np.rint(-low / scale)
        return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale

    def int8(weight: np.ndarray) -> np.ndarray:
        scale = np.abs(weight).max(axis=0) / 127
        return np.rint(weight / scale) * scale

    one = np.maximum(rounded(samples, SAMPLES) @ int8(W1) + BIAS, 0) @ W2
    two = rounded(hidden[:64], hidden) @ int8(W2)
    assert errors["w1"] == pytest.approx(relative(expected, one), rel=0.02)
    assert errors["w2"] == pytest.approx(relative(expected, two), rel=0.02)


def test_weight_of_a_trial_is_the_one_that_is_stored(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    quantize(source, out, calibration=CALIBRATION, policy="condensed")
    scale = constants(out)["w1.values_scale"]
    stored = dense_rows(out, "w1", (64, 48)) * scale[:, None]
    np.testing.assert_allclose(rounded_weight(W1, 1).T, stored, rtol=1e-6)


def test_trial_without_a_rounded_layer_is_the_float_model(source: Path, tmp_path: Path):
    floats = load_float_model(source)
    grid: Grid = (np.float32(0.1), np.uint8(3))
    grids = {layer.node: grid for layer in floats.layers}
    trial = Trial(floats, floats.layers, grids, tmp_path / "trial.onnx")
    from fanin.export.quantizing.samples import read_samples

    outputs = trial.run(read_samples(CALIBRATION, floats.model), ())
    (expected,) = run(source, x=SAMPLES)
    np.testing.assert_allclose(np.concatenate([run[0] for run in outputs]), expected, rtol=1e-4)


def test_smaller_max_error_keeps_the_same_layers_and_more(tmp_path: Path):
    sizes = [48, 64, 40, 56, 32]
    nodes, arrays, last = [], {}, "x"
    for number, shape in enumerate(pairwise(sizes)):
        arrays[f"w{number}"] = sparse(shape, 0.7, seed=number)
        output = "y" if number == len(sizes) - 2 else f"h{number}"
        nodes += [node("MatMul", [last, f"w{number}"], output)]
        if output != "y":
            nodes.append(node("Relu", [output], f"r{number}"))
            last = f"r{number}"
    source = write_model(tmp_path / "in.onnx", nodes, arrays)
    (expected,) = run(source, x=SAMPLES)
    free = quantize(source, tmp_path / "free.onnx", calibration=CALIBRATION)
    kept: set[str] = set()
    for share in (1.1, 0.9, 0.7, 0.5):
        limit = share * free.error.relative
        out = tmp_path / f"{share}.onnx"
        report = quantize(source, out, calibration=CALIBRATION, max_error=limit, policy="condensed")
        assert report.error.relative <= limit
        (actual,) = run(out, x=SAMPLES, library=True)
        assert relative(expected, actual) <= limit * 1.001
        now = {layer.name for layer in report.kept}
        assert now >= kept
        # The layers that hurt most are kept first.
        assert [layer.name in now for layer in report.layers] == sorted(
            (layer.name in now for layer in report.layers), reverse=True
        )
        kept = now
    assert len(kept) > 0
    with pytest.raises(ExportError, match=r"no layer can be quantized within a max_error of 1e-06"):
        quantize(source, tmp_path / "none.onnx", calibration=CALIBRATION, max_error=1e-6)
    assert not (tmp_path / "none.onnx").exists()


def test_labels_are_counted_where_they_change(tmp_path: Path):
    source = write_model(
        tmp_path / "in.onnx",
        [node("MatMul", ["x", "w"], "h"), node("ArgMax", ["h"], axis=1, keepdims=0)],
        {"w": W1},
        y=("batch",),
    )
    model = onnx.load(source)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, source)
    out = tmp_path / "out.onnx"
    report = quantize(source, out, calibration=CALIBRATION, policy="condensed")
    (expected,), (actual,) = run(source, x=SAMPLES), run(out, x=SAMPLES, library=True)
    share = np.mean(actual != expected)
    assert report.error.relative == pytest.approx(share)
    assert f"{share:.2%} of the labels in an output change" in report.summary()
    assert not [line for line in report.summary() if "root mean square" in line]


def test_without_ranking_layers_come_in_order(source: Path, tmp_path: Path):
    report = quantize(source, tmp_path / "out.onnx", calibration=CALIBRATION, rank=False)
    assert [(layer.name, layer.error) for layer in report.layers] == [("w1", None), ("w2", None)]


# --- differences of outputs --------------------------------------------------------------------


def test_error_is_that_of_the_worst_output():
    one = (np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]]), np.array([1, 2, 3, 4]))
    two = (np.array([[3.0, 4.5]]), np.array([[1.0, 1.0]]), np.array([1, 2, 3, 4]))
    error = compare([one], [two])
    assert error.relative == pytest.approx(1.0)
    assert error.cosine == pytest.approx(2**-0.5)


def test_equal_outputs_have_no_error_even_if_all_are_zero():
    zeros = [(np.zeros((2, 3), np.float32),)]
    assert compare(zeros, zeros).relative == 0
    assert compare(zeros, [(np.ones((2, 3), np.float32),)]).relative == float("inf")


def test_integer_outputs_count_those_that_differ():
    error = compare([(np.array([1, 2, 3, 4]),)], [(np.array([1, 2, 0, 4]),)])
    assert error.relative == 0.25
