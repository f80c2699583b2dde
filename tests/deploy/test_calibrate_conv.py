"""The measurement of convolutions: a table of times for each kind, which the cost model takes."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.deploy import SessionError
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites import calibrate_conv as module
from fanin.deploy.bench.suites.calibrate_conv import ConvCalibrationSpec, calibrate_convolutions
from fanin.export.conv_cost import KINDS, ConvCostModel, ConvTable
from fanin.ort_ops.format.conv_geometry import ConvGeometry


def test_every_kind_is_measured_on_the_whole_grid(capfd):
    spec = ConvCalibrationSpec(
        sides=(4, 6),
        channels=((4, 8), (4, 6), (4, 8), (5, 8)),
        densities=(0.2, 0.5),
        passes=2,
        timing=Timing(rounds=1, turn=1e-4, min_repeats=1, max_warmup=1e-3, lead_in=1e-4),
    )
    seen = []
    tables = calibrate_convolutions(spec, lambda title, done: seen.append((title, done)))
    assert [table.kind for table in tables] == list(KINDS)
    assert len(seen) == 2 * 28
    assert seen[15] == ("kxk strided, 6 channels at 6×6", 15 / 56)
    assert seen[15 + 28] == ("kxk strided, 6 channels at 6×6", 43 / 56)
    assert seen[-1] == ("stem, 8 channels at 6×6", 55 / 56)
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
    # ONNX Runtime warns where a model declares a different shape than it has.
    assert "shape" not in capfd.readouterr().err


def test_channels_of_every_kind_are_asked_for():
    with pytest.raises(ValueError, match="channels has 2 lists; one is needed for each of 1x1, kx"):
        ConvCalibrationSpec(channels=((4,), (4,)))


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("kxk", {"three": 6.0 + 2 * 4.0}),
        ("kxk strided", {"around": 9.0, "pooled": 5.0}),
        ("stem", {"in front": 6.5, "pixels": 2.0, "pixels twice": 4.5}),
    ],
)
def test_dense_convolution_is_timed_among_others_and_slow_spells_do_not_count(
    monkeypatch, kind, extra
):
    """A convolution takes 4 s, a call 0.5 s, and one alone 1.5 s more for its activations."""
    spec = ConvCalibrationSpec(sides=(4,), channels=((4,),) * 4, densities=(0.5,), passes=3)
    true = {"alone": 6.0, "null": 0.5, "placed": 1.5, "condensed 0.5": 3.5, "condensed 1.0": 5.5}
    calls = iter(range(10**6))

    def measured(engines, problem, timing, where):  # noqa: ARG001
        # Each third point is measured in a slow spell, another one in each pass.
        number = next(calls)
        slow = 2 if (number + number // 7) % 3 == 0 else 1
        mine = true | (extra if f"of {kind}," in where else {})
        return {engine.name: np.full(4, mine.get(engine.name, 1.0) * slow) for engine in engines}

    monkeypatch.setattr(module, "measure_rounds", measured)
    (table,) = (one for one in calibrate_convolutions(spec) if one.kind == kind)
    assert table.dense == ((4.0,),)
    assert table.condensed == (((3.0,),),)
    geometry = module._geometry(kind, 4)
    before = 4 * geometry.strides[0]
    assert table.place == pytest.approx(1.0 / (geometry.in_channels * before**2))
    copies = {"kxk": 2, "kxk strided": 5, "stem": 1}[kind]
    assert table.reorder == pytest.approx(1.5 / (4 * 16 * copies))


def test_convolution_that_computes_something_else_stops_the_calibration(monkeypatch):
    save_case = module._save_case
    monkeypatch.setattr(
        module,
        "_save_case",
        lambda model, path, x: save_case(model, path, x) + (model.graph.node[0].name == "layer"),
    )
    spec = ConvCalibrationSpec(sides=(4,), channels=((4,),) * 4, densities=(0.5,), passes=1)
    with pytest.raises(SessionError, match=r"could not measure condensed 0.5 of 1x1, 4 channels"):
        calibrate_convolutions(spec)
