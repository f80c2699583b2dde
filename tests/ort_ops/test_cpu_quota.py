"""The CPU quota of containers, from control groups of both versions: the library's and Python's."""

from pathlib import Path

import pytest

from fanin.deploy.cpus import cpu_quota
from fanin.ort_ops import _native


def write_groups(root: Path, groups: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        # Version 2, in a container and on the host.
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n"}, 0.5),
        # The smallest limit of a group and its parents.
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 1.0),
        ("0::/a/b\n", {"a/cpu.max": "800000 100000\n", "a/b/cpu.max": "max 100000\n"}, 8.0),
        # The path is the host's, and only the container's group is mounted.
        ("0::/kubepods/pod1/c1\n", {"cpu.max": "300000 100000\n"}, 3.0),
        # Version 1.
        (
            "5:memory:/x\n4:cpu,cpuacct:/docker/c\n",
            {"cpu/docker/c/cpu.cfs_quota_us": "150000", "cpu/docker/c/cpu.cfs_period_us": "100000"},
            1.5,
        ),
        ("4:cpuacct,cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1"}, None),
        (
            "3:cpu:/gone\n",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        # The limit of another controller is not a CPU limit.
        ("4:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "1", "cpu/cpu.cfs_period_us": "1"}, None),
        # Invalid content sets no limit.
        ("0::/\n", {"cpu.max": "lots 100000"}, None),
        ("0::/\n", {"cpu.max": "100000 0"}, None),
        ("0::/\n", {"cpu.max": "-5 100000"}, None),
        ("0::/\n", {"cpu.max": ""}, None),
        ("0:\nnonsense\n", {"cpu.max": "100000 100000"}, None),
        ("0::relative\n", {}, None),
        ("0::/a:b/\n", {"a:b/cpu.max": "200000 100000"}, 2.0),
        ("", {}, None),
    ],
)
def test_quota_is_read(tmp_path, groups, files, expected):
    write_groups(tmp_path, groups, files)
    assert _native.cpu_quota(str(tmp_path)) == expected
    assert cpu_quota(tmp_path) == expected


def test_missing_files_set_no_limit(tmp_path):
    assert _native.cpu_quota(str(tmp_path)) is None
    assert cpu_quota(tmp_path) is None


def test_this_process_has_the_same_quota_in_both():
    assert cpu_quota() == _native.cpu_quota()
