"""The measurement of convolutions: a table of times for each kind, which the cost model takes."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.deploy.bench.measure import Timing
from fanin.deploy.calibrate_conv import ConvCalibrationSpec, calibrate_convolutions, random_weight
from fanin.export.conv_cost import KINDS, ConvCostModel, ConvTable
from fanin.export.conv_geometry import ConvGeometry


def test_every_kind_is_measured_on_the_whole_grid(capfd):
    spec = ConvCalibrationSpec(
        sides=(4, 6),
        channels=((4, 8), (4, 6), (4, 8), (5, 8)),
        densities=(0.2, 0.5),
        timing=Timing(rounds=1, turn=1e-4, min_repeats=1, max_warmup=1e-3, lead_in=1e-4),
    )
    seen = []
    tables = calibrate_convolutions(spec, lambda title, done: seen.append((title, done)))
    assert [table.kind for table in tables] == list(KINDS)
    assert len(seen) == 28
    assert seen[15] == ("kxk strided, 6 channels at 6×6", 15 / 28)
    assert seen[-1] == ("stem, 8 channels at 6×6", 27 / 28)
    weights = {
        "1x1": (16, 64),
        "kxk": (9 * 16, 9 * 36),
        "depthwise": (36, 72),
        "stem": (27 * 5, 27 * 8),
    }
    for table in tables:
        assert table.pixels == (16, 36)
        assert table.weights == weights[table.kind.split()[0]]
        assert table.densities == ((0.5, 1.0) if "depthwise" in table.kind else (0.2, 0.5))
        assert ConvTable.parse(vars(table)) == table
    geometry = ConvGeometry(6, 6, (3, 3), pads=(1, 1, 1, 1))
    assert ConvCostModel(tables).dense(geometry, 1, (5, 5)) > 0
    # ONNX Runtime warns where a model declares another shape than it has.
    assert "shape" not in capfd.readouterr().err


def test_random_filters_have_a_constant_fan_in():
    geometry = ConvGeometry(8, 16, (3, 3))
    weight = random_weight(np.random.default_rng(0), geometry, 0.1)
    assert weight.values.shape == (16, 7)
    assert weight.padding == 0


def test_channels_of_every_kind_are_asked_for():
    with pytest.raises(ValueError, match="channels has 2 lists; one is needed for each of 1x1, kx"):
        ConvCalibrationSpec(channels=((4,), (4,)))
