"""The cost of a dispatch: its file, its text for sessions, and the library's own values."""

import json
import re
from pathlib import Path

import pytest

from fanin.ort_ops.dispatch_cost import (
    SLEEPING,
    SPINNING,
    DispatchCalibration,
    DispatchCost,
    describe_cpus,
    dispatch_path,
)

ROOT = Path(__file__).parents[2]

MEASURED = DispatchCalibration("a CPU", (2, 4), DispatchCost(3.5, 0.2), DispatchCost(20, 2.25))


def test_a_run_on_one_thread_costs_nothing():
    cost = DispatchCost(3.0, 0.5)
    assert [cost.microseconds(n) for n in (1, 2, 16)] == [0.0, 4.0, 11.0]


def test_the_assumed_costs_are_the_librarys():
    source = (ROOT / "ort_ops/csrc/ort/threads.cc").read_text()
    for name, cost in (("kSpinning", SPINNING), ("kSleeping", SLEEPING)):
        numbers = re.search(rf"DispatchCost {name}{{(.*), (.*)}};", source)
        assert tuple(map(float, numbers.groups())) == (cost.fixed, cost.per_thread)


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (DispatchCost(3.5, 0.2), "3.5,0.2"),
        (DispatchCost(0, 0), "0,0"),
        (DispatchCost(12345.678, 1e-7), "1.235e+04,1e-07"),
    ],
)
def test_the_session_config_entry(cost, text):
    assert cost.entry() == text


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None, True])
def test_costs_that_are_no_times_are_refused(value):
    with pytest.raises(ValueError, match="per_thread is "):
        DispatchCost(1.0, value)


def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "new" / "c.threads.json"
    MEASURED.save(path)
    assert DispatchCalibration.load(path) == MEASURED


def test_the_file_is_beside_the_cost_table():
    assert dispatch_path(Path("/x/calibration.json")) == Path("/x/calibration.threads.json")
    assert dispatch_path(Path("/x/table")) == Path("/x/table.threads.json")


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 2},
        {"machine": 3},
        {"threads": 4},
        {"threads": ["x"]},
        {"spinning": None},
        {"spinning": {"fixed": 1}},
        {"spinning": {"fixed": 1, "per_thread": -1}},
        {"sleeping": {"fixed": 1, "per_thread": 1, "more": 1}},
        {"sleeping": {"fixed": [1], "per_thread": 1}},
    ],
)
def test_damaged_files_are_refused_with_the_remedy(tmp_path, change):
    path = tmp_path / "c.threads.json"
    MEASURED.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"c\.threads\.json is no calibration.*fanin calibrate"):
        DispatchCalibration.load(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000])
def test_files_that_are_something_else_are_refused(tmp_path, text):
    path = tmp_path / "c.threads.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no calibration of threads"):
        DispatchCalibration.load(path)


def save_own(tmp_path, monkeypatch, machine):
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "c.json"))
    found = DispatchCalibration(machine, (2,), SPINNING, SLEEPING)
    found.save(tmp_path / "c.threads.json")
    return found


def test_the_users_file_is_found(tmp_path, monkeypatch):
    own = save_own(tmp_path, monkeypatch, describe_cpus())
    assert DispatchCalibration.of_this_machine() == own


def test_the_file_of_another_machine_is_not_taken(tmp_path, monkeypatch):
    save_own(tmp_path, monkeypatch, "another CPU, 64 CPUs")
    assert DispatchCalibration.of_this_machine() is None


def test_without_a_file_there_are_no_measured_costs(tmp_path, monkeypatch):
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "absent.json"))
    assert DispatchCalibration.of_this_machine() is None


def test_cpus_are_described_by_their_model_and_number(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 48)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nx: y\n")
    assert describe_cpus(tmp_path) == "Fast CPU @ 3 GHz, 48 CPUs"
    assert describe_cpus(tmp_path / "nothing").endswith(", 48 CPUs")
