"""The measurement of 8-bit layers: right, complete, and found again by exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import SessionError
from fanin.deploy.bench.engines.self_checked import SelfCheckedLayer
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites import calibrate_int8 as module
from fanin.deploy.bench.suites.calibrate import CalibrationSpec
from fanin.deploy.bench.suites.calibrate_conv import ConvCalibrationSpec
from fanin.deploy.bench.suites.calibrate_int8 import calibrate_int8
from fanin.export.conv_cost import QUANTIZED_KINDS
from fanin.export.quantized_costs import QuantizedCalibration, QuantizedCosts

SMALL = CalibrationSpec(
    batches=(1, 4),
    sizes=(16,),
    densities=(0.1, 0.5),
    passes=1,
    timing=Timing(rounds=2, turn=1e-4, max_warmup=1e-3, lead_in=0.0),
    convolutions=ConvCalibrationSpec(
        sides=(4,),
        channels=((8,),) * 4,
        densities=(0.5,),
        passes=1,
        timing=Timing(rounds=1, turn=1e-4, min_repeats=1, max_warmup=1e-3, lead_in=1e-4),
    ),
)


def test_every_point_of_the_grid_has_a_time(tmp_path: Path):
    seen = []
    table = calibrate_int8(SMALL, lambda title, done: seen.append((title, done)))
    for layers in (table.static, table.dynamic):
        assert (layers.batches, layers.weights, layers.densities) == ((1, 4), (256,), (0.1, 0.5))
    assert [one.kind for one in table.convolutions] == list(QUANTIZED_KINDS)
    for one in table.convolutions:
        assert (one.pixels, one.densities) == ((16,), (0.5,))
    assert seen[0] == ("static int8, 16 × 16, batch 1", 0.0)
    assert seen[3] == ("dynamic int8, 16 × 16, batch 4", 3 / 4)
    assert len(seen) == 4 + len(QUANTIZED_KINDS)
    table.save(tmp_path / "table.json")
    again = QuantizedCalibration.load(tmp_path / "table.json")
    assert again.static.condensed[1][0] == pytest.approx(table.static.condensed[1][0], rel=1e-3)


def test_layers_of_each_form_are_measured_above_their_own_null_session(monkeypatch):
    sessions = {}

    def rounds(engines, problem, timing, where, *, null):  # noqa: ARG001
        sessions[where] = [(one.name, one.precision, one._library) for one in engines]
        slow = 2.0 if "dynamic" in where else 1.0
        times = {"null": 0.5, "dense": 8.5, "condensed 0.1": 2.5, "condensed 0.5": 4.5}
        return {name: np.full(3, time * slow) for name, time in times.items()}

    monkeypatch.setattr(module, "measure_rounds", rounds)
    monkeypatch.setattr(module, "calibrate_convolutions", lambda *_: ())
    table = calibrate_int8(replace(SMALL, batches=(4,)))
    assert (table.static.dense, table.dynamic.dense) == (((8.0,),), ((16.0,),))
    assert table.static.condensed == (((2.0, 4.0),),)
    assert sessions["at static int8, 16 × 16, batch 4"] == [
        ("dense", "int8", False),
        ("condensed 0.1", "int8", True),
        ("condensed 0.5", "int8", True),
    ]


def test_layer_that_computes_something_else_stops_the_calibration(monkeypatch):
    right = SelfCheckedLayer._right_output
    monkeypatch.setattr(SelfCheckedLayer, "_right_output", lambda self: -right(self))
    with pytest.raises(SessionError, match=r"could not measure dense at static int8, 16 × 16, ba"):
        calibrate_int8(SMALL)


def test_command_writes_the_times_beside_the_others_where_exports_look_for_them(
    tmp_path: Path, monkeypatch
):
    shipped = QuantizedCalibration.shipped()
    monkeypatch.setattr(
        module,
        "calibrate_int8",
        lambda spec, progress: replace(shipped, machine="mine"),  # noqa: ARG005
    )
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "table.json"))
    done = CliRunner().invoke(app, ["calibrate", "--of", "int8"])
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["table.int8.json"]
    assert QuantizedCosts.of_this_machine().machine == "mine"
