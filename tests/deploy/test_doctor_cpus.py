"""The doctor's checks of CPUs, on made-up machines."""

import os

import pytest

from fanin.deploy import doctor_cpus
from fanin.deploy.cpus import default_threads
from fanin.deploy.doctor_cpus import affinity, core_types, numa_nodes, parse_ranges, ranges


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def limited(root, quota):
    return write(root, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})


@pytest.mark.parametrize(
    ("cpus", "text"), [([3, 0, 1, 2, 8], "0-3,8"), ([5], "5"), ([1, 3, 5, 6], "1,3,5-6"), ([], "")]
)
def test_ranges_of_cpus(cpus, text):
    assert ranges(cpus) == text
    assert parse_ranges(text + "\n") == set(cpus)


@pytest.mark.parametrize("text", ["0-", "x", "-3", "0,,2", "1-2-3", "3 4"])
def test_what_is_no_list_of_cpus_is_none(text):
    assert parse_ranges(text) == set()


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max", 8), ("1000000", 8), ("350000", 3), ("399999", 3), ("50000", 1)],
)
def test_a_quota_is_rounded_down_to_whole_cpus(tmp_path, monkeypatch, quota, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert default_threads(limited(tmp_path, quota)) == expected


def test_a_quota_is_shown_with_the_threads_that_it_gives(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    detail = doctor_cpus.threads(limited(tmp_path, 350000))
    assert f"8 of {os.cpu_count()} CPUs may be used, with a CPU quota of 3.5" in detail
    assert "open_session takes 3 unless told" in detail


def test_a_quota_below_one_cpu_has_advice(tmp_path):
    detail, remedy = doctor_cpus.threads(limited(tmp_path, 25000))
    assert "a CPU quota of 0.25: open_session takes 1" in detail
    assert "stopped after 25 ms of work in 100 ms" in remedy


def test_without_a_quota_none_is_shown(tmp_path):
    assert "quota" not in doctor_cpus.threads(tmp_path)


PARENT = {
    "proc/self/status": "Name:\tpython\nPPid:\t41\nCpus_allowed_list:\t2\n",
    "proc/41/status": "Name:\tbash\nPPid:\t1\nCpus_allowed_list:\t0-7\n",
}


def test_a_mask_narrower_than_the_parents_is_reported(tmp_path):
    detail, remedy = affinity({2, 3}, {}, write(tmp_path, PARENT))
    assert "only 2 of the 8 CPUs of the process that started this one (2-3 of 0-7)" in detail
    assert "taskset" in remedy


@pytest.mark.parametrize("mask", [range(8), range(12)])
def test_the_parents_mask_or_a_wider_one_is_not_narrowed(tmp_path, mask):
    assert affinity(set(mask), {}, write(tmp_path, PARENT)) == "not narrowed"


def test_a_parent_that_cannot_be_seen_narrows_nothing(tmp_path):
    assert affinity({0}, {}, tmp_path) == "not narrowed"
    hidden = write(tmp_path, {"proc/self/status": "PPid:\t0\n"})
    assert affinity({0}, {}, hidden) == "not narrowed"


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_PROC_BIND", "close"), ("GOMP_CPU_AFFINITY", "0-3"), ("KMP_AFFINITY", "compact,1,0")],
)
def test_variables_that_bind_threads_are_named(tmp_path, name, value):
    detail, remedy = affinity({0}, {name: value}, tmp_path)
    assert f"{name}={value}" in detail
    assert f"unset {name}" in remedy


@pytest.mark.parametrize("value", ["", "false", "FALSE"])
def test_variables_that_bind_nothing_are_not(tmp_path, value):
    assert affinity({0}, {"OMP_PROC_BIND": value, "KMP_AFFINITY": "none"}, tmp_path) == (
        "not narrowed"
    )


HYBRID = {"sys/devices/cpu_core/cpus": "0-3\n", "sys/devices/cpu_atom/cpus": "4-11\n"}


def test_hybrid_x86_cpus(tmp_path):
    detail, remedy = core_types(set(range(12)), write(tmp_path, HYBRID))
    assert detail == "performance cores: 0-3; efficiency cores: 4-11"
    assert "taskset -c 0-3, threads=4" in remedy


def test_a_mask_of_one_kind_of_cores_is_alike(tmp_path):
    assert "all alike" in core_types({1, 2}, write(tmp_path, HYBRID))


def test_arm_cpus_of_several_capacities(tmp_path):
    capacities = {0: 446, 1: 446, 2: 871, 3: 1024}
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": f"{capacity}\n"
        for cpu, capacity in capacities.items()
    }
    detail, remedy = core_types(set(capacities), write(tmp_path, files))
    assert detail == (
        "cores of capacity 1024: 3; cores of capacity 871: 2; cores of capacity 446: 0-1"
    )
    assert "taskset -c 3, threads=1" in remedy
    assert "all alike" in core_types({0, 1}, tmp_path)


def test_cpus_of_which_the_system_tells_nothing_are_alike(tmp_path):
    assert "all alike" in core_types({0, 1}, tmp_path)


def test_numa_nodes_of_the_mask(tmp_path):
    nodes = {f"sys/devices/system/node/node{i}/cpulist": f"{4 * i}-{4 * i + 3}\n" for i in range(3)}
    nodes["sys/devices/system/node/node3/cpulist"] = "\n"  # memory without CPUs
    root = write(tmp_path, nodes)
    detail, remedy = numa_nodes(set(range(2, 12)), root)
    assert detail == "3, 0: CPUs 2-3; 1: CPUs 4-7; 2: CPUs 8-11"
    assert "numactl --cpunodebind=0 --membind=0, threads=2" in remedy
    assert numa_nodes({4, 5}, root) == "1"


def test_the_checks_run_here():
    for _, check in doctor_cpus.CHECKS:
        assert check()
