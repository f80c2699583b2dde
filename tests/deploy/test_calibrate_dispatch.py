"""Measuring a dispatch: the fit is robust, and the file is where sessions look for it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites import calibrate_dispatch as module
from fanin.deploy.bench.suites.calibrate_dispatch import (
    DispatchCalibrationSpec,
    calibrate_dispatch,
    fit_dispatch,
)
from fanin.deploy.bench.suites.specs import thread_counts
from fanin.deploy.cpus import available_cpus
from fanin.ort_ops.dispatch_cost import SLEEPING, SPINNING, DispatchCalibration, DispatchCost


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (16, (1, 2, 4, 8, 16)),
        (24, (1, 2, 4, 8, 16, 24)),
    ],
)
def test_threads_are_powers_of_two_and_all_cpus(cpus, expected):
    assert thread_counts(cpus) == expected


def test_a_straight_line_is_found():
    times = {n: 4.0 + 0.25 * n for n in (2, 4, 8, 16)}
    assert fit_dispatch(times, SPINNING) == DispatchCost(4.0, 0.25)


def test_one_wrong_time_does_not_move_the_line():
    times = {n: 4.0 + 0.25 * n for n in (2, 4, 8, 16, 32)}
    assert fit_dispatch({**times, 8: 300.0}, SPINNING).per_thread == pytest.approx(0.25, abs=0.05)
    assert fit_dispatch({**times, 8: 300.0}, SPINNING).fixed == pytest.approx(4.0, abs=0.6)


@pytest.mark.parametrize("assumed", [SPINNING, SLEEPING])
def test_one_number_of_threads_keeps_the_assumed_slope(assumed):
    found = fit_dispatch({2: 20.0}, assumed)
    assert found.per_thread == assumed.per_thread
    assert found.microseconds(2) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({2: -3.0}, DispatchCost(0.0, 0.0)),  # less than noise
        ({2: 0.1}, DispatchCost(0.0, 0.05)),  # less than the assumed slope
        ({2: 8.0, 4: 6.0, 8: 4.0}, DispatchCost(6.0, 0.0)),  # falling
        ({2: 1.0, 4: 4.0, 8: 10.0}, DispatchCost(0.0, 1.0)),  # would begin below zero
    ],
)
def test_costs_are_never_negative(times, expected):
    assert fit_dispatch(times, SPINNING) == expected


def measured(monkeypatch, cost):
    """Let sessions take what a machine with this cost of a dispatch would."""

    def rounds(engines, problem, timing, where, *, null):  # noqa: ARG001
        n = timing.threads
        work = 40.0 * n
        times = {"whole": work + 5, "split": work / n + cost(n, "spinning" in where) + 5, "null": 5}
        return {name: module.np.array([time * 1e-6] * 3) for name, time in times.items()}

    monkeypatch.setattr(module, "measure_rounds", rounds)


def test_costs_are_what_a_split_run_takes_beyond_its_share(monkeypatch):
    measured(monkeypatch, lambda n, spins: 2.0 + 0.5 * n if spins else 30.0 + 2.0 * n)
    seen = []
    found = calibrate_dispatch(
        DispatchCalibrationSpec(threads=(2, 4, 8), passes=1), lambda *step: seen.append(step)
    )
    assert found.threads == (2, 4, 8)
    assert found.spinning.fixed == pytest.approx(2.0, abs=0.3)
    assert found.spinning.per_thread == pytest.approx(0.5, abs=0.1)
    assert found.sleeping.fixed == pytest.approx(30.0, abs=0.3)
    assert found.sleeping.per_thread == pytest.approx(2.0, abs=0.1)
    assert seen[0] == ("dispatch to 2 threads, spinning", 0.0)
    assert seen[3] == ("dispatch to 2 threads, sleeping", 0.5)


@pytest.mark.skipif(available_cpus() < 2, reason="needs two CPUs")
def test_sessions_can_be_measured_here():
    timing = Timing(rounds=2, turn=1e-4, max_warmup=1e-3, lead_in=0.0)
    found = calibrate_dispatch(DispatchCalibrationSpec(threads=(2,), passes=1, timing=timing))
    assert found.threads == (2,)
    assert found.spinning.microseconds(2) >= 0
    assert found.sleeping.microseconds(2) >= 0


def test_a_single_cpu_has_no_dispatch():
    assert calibrate_dispatch(DispatchCalibrationSpec(threads=())) is None


def run(tmp_path, *arguments):
    environment = {"FANIN_CALIBRATION": str(tmp_path / "own" / "table.json")}
    return CliRunner().invoke(app, ["calibrate", *arguments], env=environment)


def test_the_command_writes_the_file_beside_the_cost_table(tmp_path: Path, monkeypatch):
    own = DispatchCalibration("m", (2, 4), DispatchCost(3.5, 0.25), DispatchCost(20.0, 2.0))
    monkeypatch.setattr(module, "calibrate_dispatch", lambda progress: own)  # noqa: ARG005
    done = run(tmp_path, "--of", "dispatch")
    assert done.exit_code == 0, done.output
    path = tmp_path / "own" / "table.threads.json"
    assert DispatchCalibration.load(path) == own
    assert not (tmp_path / "own" / "table.json").exists()
    assert f"Wrote {path}" in done.output.replace("\n", "")
    assert "3.5 + 0.25 n µs, 20 + 2 n µs if they sleep" in done.output
    assert "measured with 2, 4 threads" in done.output


def test_the_command_says_that_a_single_cpu_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "calibrate_dispatch", lambda progress: None)  # noqa: ARG005
    done = run(tmp_path, "--of", "dispatch")
    assert done.exit_code == 0
    assert "single CPU" in done.output


def test_an_unknown_part_is_refused(tmp_path):
    done = run(tmp_path, "--of", "dispatch,networks")
    assert done.exit_code == 2
    assert "there are dispatch, layers" in done.output
