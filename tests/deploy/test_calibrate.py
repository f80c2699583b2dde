"""Measuring the cost model: what is measured is right, complete, and found again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import SessionError
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites import calibrate as module
from fanin.deploy.bench.suites.calibrate import CalibrationSpec, calibrate
from fanin.deploy.bench.suites.calibrate_conv import ConvCalibrationSpec
from fanin.export import onnx_op
from fanin.export.cost_model import Calibration, CostModel

SMALL = CalibrationSpec(
    batches=(1, 4),
    sizes=(16, 40),
    densities=(0.1, 0.5),
    passes=2,
    timing=Timing(rounds=2, turn=1e-4, max_warmup=1e-3, lead_in=0.0),
    convolutions=ConvCalibrationSpec(
        sides=(4,),
        channels=((4,),) * 4,
        densities=(0.5,),
        passes=1,
        timing=Timing(rounds=1, turn=1e-4, min_repeats=1, max_warmup=1e-3, lead_in=1e-4),
    ),
)


def test_every_point_of_the_grid_has_a_time():
    seen = []
    table = calibrate(SMALL, lambda title, done: seen.append((title, done)))
    assert (table.batches, table.weights, table.densities) == ((1, 4), (256, 1600), (0.1, 0.5))
    for name, shape in (("dense", (2, 2)), ("condensed", (2, 2, 2)), ("scatter", (2, 2))):
        array = np.array(getattr(table, name))
        assert array.shape == shape
        assert (array > 0).all()
    assert seen[0] == ("16 × 16, batch 1", 0.0)
    assert seen[7] == ("40 × 40, batch 4", 7 / 8)
    assert len(seen) == 8 + len(table.convolutions)


def test_rounds_of_a_slow_spell_do_not_count(monkeypatch):
    """In two thirds of the rounds the machine takes twice as long, and wildly different times."""
    true = {"dense": 8.0, "structured": 7.0, "active": 5.0, "null": 1.0}
    true |= {"condensed 0.1": 3.0, "condensed 0.5": 6.0}
    rng = np.random.default_rng(0)
    spells = itertools.cycle([(1, 0), (2, 0.4), (2, 0.9)])

    def measured(spec, point):  # noqa: ARG001
        speed, noise = next(spells)
        return {
            name: seconds * speed * (1 + noise * rng.random(6)) for name, seconds in true.items()
        }

    monkeypatch.setattr(module, "_measure_point", measured)
    table = calibrate(replace(SMALL, batches=(1,), sizes=(16,), passes=3))
    assert table.dense == ((7.0,),)
    assert table.condensed == (((2.0, 5.0),),)
    assert table.scatter == ((2.0,),)


def test_layer_that_computes_something_else_stops_the_calibration(monkeypatch):
    right = onnx_op.condensed_layer_model

    def wrong(weight, batch):
        return right(replace(weight, bias=weight.bias + 1), batch)

    monkeypatch.setattr(onnx_op, "condensed_layer_model", wrong)
    with pytest.raises(SessionError, match=r"could not measure condensed 0.1 at 16 × 16, batch 1"):
        calibrate(SMALL)


def test_command_writes_the_table_where_exports_look_for_it(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "calibrate", lambda progress: calibrate(SMALL, progress))
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "own" / "table.json"))
    done = CliRunner().invoke(app, ["calibrate", "--of", "layers"])
    assert done.exit_code == 0, done.output
    table = Calibration.load(tmp_path / "own" / "table.json")
    assert CostModel.of_this_machine().machine == table.machine


def test_shipped_table_names_its_machine_and_orders_the_forms():
    table = Calibration.shipped()
    assert "Cascade Lake" in table.machine
    dense, condensed = np.array(table.dense), np.array(table.condensed)
    assert (np.diff(dense, axis=0) > 0).all()
    assert (np.diff(dense, axis=1) > 0).all()
    # More entries take longer, and 2 % of them never longer than all; tiny layers are all call.
    large = condensed[:, 1:]
    assert (np.diff(large, axis=2) > 0).all()
    assert (large[..., 0] < dense[:, 1:]).all()
