"""In which units outputs of quantized models are compared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fanin.export import quantize
from fanin.export.quantization_units import Units, with_noise

from .onnx_models import node, sparse, write_model


def units(*cases: list[float]) -> Units:
    outputs = [[np.array(case, np.float32)] for case in cases]
    return with_noise(Units((None,)), outputs, outputs)


def test_unit_is_a_255th_of_the_range_over_all_cases():
    first, second = np.linspace(0, 1, 40).tolist(), np.linspace(10, 11, 40).tolist()
    assert units(first, second).size(0) == pytest.approx(11 / 255)


def test_few_or_equal_entries_have_at_least_a_255th_of_their_size():
    assert units([4.0], [4.01]).size(0) == pytest.approx(4.01 / 255)
    assert units([2.0] * 100).size(0) == pytest.approx(2 / 255)


def test_what_is_always_0_differs_beyond_any_unit():
    unit = units([0.0, 0.0])
    zero = np.zeros(2, np.float32)
    assert unit.distance(0, zero, zero) == 0
    assert unit.distance(0, zero + 1, zero) == math.inf


@pytest.mark.parametrize("dynamic", [False, True])
def test_model_of_one_number_a_sample_is_quantized(tmp_path: Path, dynamic: bool):
    source = write_model(
        tmp_path / "in.onnx",
        [
            node("MatMul", ["x", "w1"], "h"),
            node("MatMul", ["h", "w2"], "p"),
            node("Sigmoid", ["p"], "s"),
            node("Squeeze", ["s"]),
        ],
        {"w1": sparse((48, 64)), "w2": sparse((64, 1), 0.5)},
        x=(1, 48),
        y=(),
    )
    x = np.random.default_rng(0).standard_normal((40, 48)).astype(np.float32)
    report = quantize(source, tmp_path / "out.onnx", calibration={"x": x}, dynamic=dynamic)
    assert report.error.relative < 0.1
    assert all(check.units <= check.unit_tolerance for check in report.export.parity)
