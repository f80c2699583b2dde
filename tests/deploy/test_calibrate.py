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
from fanin.deploy.bench.suites import calibrate_conv
from fanin.deploy.bench.suites.calibrate import CalibrationSpec, calibrate
from fanin.deploy.bench.suites.calibrate_conv import ConvCalibrationSpec
from fanin.deploy.cpus import available_cpus
from fanin.export import onnx_op
from fanin.export.conv_cost import KINDS
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


@pytest.mark.usefixtures("two_cpus")
def test_turns_in_which_another_process_takes_a_cpu_do_not_count(monkeypatch):
    """With two threads each session is disturbed in rounds of its own; a few are not."""
    true = {"dense": 8.0, "structured": 7.0, "active": 5.0, "null": 1.0}
    true |= {"condensed 0.1": 3.0, "condensed 0.5": 6.0}
    rng = np.random.default_rng(0)

    def measured(spec, point):  # noqa: ARG001
        return {name: seconds * (1 + (rng.random(20) < 0.7)) for name, seconds in true.items()}

    monkeypatch.setattr(module, "_measure_point", measured)
    monkeypatch.setattr(module, "calibrate_convolutions", lambda *_: ())
    table = calibrate(replace(SMALL, batches=(1,), sizes=(16,), passes=3, threads=2))
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
    monkeypatch.setattr(module, "calibrate", lambda _, progress: calibrate(SMALL, progress))
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "own" / "table.json"))
    done = CliRunner().invoke(app, ["calibrate", "--of", "layers"])
    assert done.exit_code == 0, done.output
    table = Calibration.load(tmp_path / "own" / "table.json")
    assert CostModel.of_this_machine().machine == table.machine


@pytest.fixture
def two_cpus(monkeypatch):
    monkeypatch.setattr(module, "default_threads", lambda: 2)


@pytest.mark.usefixtures("two_cpus")
def test_every_session_has_the_threads_of_the_calibration(monkeypatch):
    """Layers and convolutions, dense and condensed, and the null session."""
    seen = []

    def rounds(engines, problem, timing, where, *, null=None):  # noqa: ARG001
        sessions = [*engines, *([null] if null else [])]
        seen.extend((one.name, one.threads, timing.threads) for one in sessions)
        return {one.name: np.ones(1) for one in sessions}

    monkeypatch.setattr(module, "measure_rounds", rounds)
    monkeypatch.setattr(calibrate_conv, "measure_rounds", rounds)
    table = calibrate(replace(SMALL, threads=2))
    assert table.threads == 2
    assert {(own, timed) for _, own, timed in seen} == {(2, 2)}
    names = {name for name, *_ in seen}
    assert {"dense", "condensed 0.1", "structured", "active", "null", "alone", "placed"} <= names


@pytest.mark.skipif(available_cpus() < 2, reason="needs two CPUs")
@pytest.mark.usefixtures("two_cpus")
def test_sessions_of_two_threads_can_be_measured_here():
    table = calibrate(replace(SMALL, batches=(4,), sizes=(40,), passes=1, threads=2))
    assert table.threads == 2
    for times in (table.dense, table.condensed, table.scatter):
        assert (np.array(times) > 0).all()
    assert [one.kind for one in table.convolutions] == list(KINDS)


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize("threads", [0, -1, 3, 1025])
def test_a_number_of_threads_that_cannot_be_measured_here_is_refused(
    tmp_path, monkeypatch, threads
):
    monkeypatch.setattr(module, "calibrate", lambda *_, **__: pytest.fail("measured"))
    done = calibrated(tmp_path, "--threads", str(threads))
    assert done.exit_code == 1
    assert f"threads is {threads}, it must be 1 to 2, the CPUs of this process" in done.output
    assert not list(tmp_path.iterdir())


def test_a_dispatch_has_no_number_of_threads_to_choose(tmp_path):
    done = calibrated(tmp_path, "--of", "dispatch", "--threads", "2")
    assert done.exit_code == 2
    assert "belongs to layers" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("two_cpus")
def test_command_keeps_each_number_of_threads_in_a_file_of_its_own(tmp_path, monkeypatch):
    def measured(spec, progress):  # noqa: ARG001
        shipped = Calibration.shipped()
        tables = Calibration.shipped_convolutions()
        machine = f"measured with {spec.threads}"
        return replace(shipped, machine=machine, threads=spec.threads, convolutions=tables)

    monkeypatch.setattr(module, "calibrate", measured)
    for threads, name in ((2, "table.2-threads.json"), (1, "table.json")):
        done = calibrated(tmp_path, "--of", "layers", "--threads", str(threads))
        assert done.exit_code == 0, done.output
        assert f"Wrote {tmp_path / name}" in done.output.replace("\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "table.2-threads.json",
        "table.json",
    ]
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "table.json"))
    for threads, measured_threads in ((1, 1), (2, 2), (4, 1)):
        costs = CostModel.of_this_machine(threads)
        assert costs.machine == f"measured with {measured_threads}"
        assert costs.measured_threads == measured_threads


def calibrated(folder: Path, *arguments: str):
    environment = {"FANIN_CALIBRATION": str(folder / "table.json")}
    return CliRunner().invoke(app, ["calibrate", *arguments], env=environment)


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
