"""The folder that workers share: its ownership, and that no other folder is touched."""

import fcntl
import os
import subprocess
import sys

import pytest

from fanin.deploy.serve import SettingsError, shared_folder

from ._serving import call, gain, requires_serving


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_folder.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_only_folders_of_ended_servers_are_removed():
    used, lock = shared_folder.create()
    left, other = shared_folder.create()
    (left / "counter_7.db").write_bytes(b"counts")
    os.close(other)
    assert shared_folder.remove_stale() == [left]
    assert (left.exists(), used.exists()) == (False, True)
    os.close(lock)
    assert shared_folder.remove_stale() == [used]


def test_a_worker_that_lives_keeps_the_folder_of_a_killed_supervisor():
    folder, lock = shared_folder.create()
    worker = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    os.close(lock)
    assert shared_folder.remove_stale() == []
    worker.kill()
    worker.wait()
    assert shared_folder.remove_stale() == [folder]


def test_nothing_but_a_folder_of_workers_is_ever_removed(temporary):
    """Anyone can write to the temporary folder: there may be links and folders of others."""
    precious = temporary / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").touch()
    (temporary / "fanin-workers-link").symlink_to(precious)
    (temporary / "fanin-workers-file").touch()
    opened = temporary / "fanin-workers-open"
    opened.mkdir()
    opened.chmod(0o755)
    linking = temporary / "fanin-workers-linking"
    linking.mkdir(mode=0o700)
    (linking / "link").symlink_to(precious / "file")
    (linking / "folder").symlink_to(precious)
    others = temporary / "fanin-workers-others"
    others.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(others, 12345, 12345)
        assert shared_folder.remove_stale() == [linking]
        assert others.exists()
    else:
        assert sorted(shared_folder.remove_stale()) == [linking, others]
    assert (precious / "file").exists()
    assert opened.exists()


def test_a_folder_removed_as_abandoned_before_it_is_locked_is_created_again(monkeypatch):
    lock, raced = fcntl.flock, []

    def slow(descriptor, how):
        if not raced:
            raced.append(True)
            assert len(shared_folder.remove_stale()) == 1
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    folder, descriptor = shared_folder.create()
    assert folder.exists()
    os.close(descriptor)


def test_a_folder_of_metrics_that_a_server_inherits_is_neither_used_nor_needed(
    start, model, tmp_path
):
    """It belongs to another program: it is neither written to nor read."""
    requires_serving()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    names = dict.fromkeys(("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"), str(theirs))
    with start(model.parent.parent, env=names) as server:
        assert gain(server) == 3
        line = b'fanin_requests_total{model="m",status="200",version="1"} 1.0'
        assert line in call(server, "GET", "/metrics")[1]
    assert list(theirs.iterdir()) == []


def test_workers_get_their_own_folder_of_metrics_instead_of_an_inherited_one(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        monkeypatch.setenv(name, "/theirs")
    found = shared_folder.environment(tmp_path)
    assert found["PROMETHEUS_MULTIPROC_DIR"] == str(tmp_path)
    assert "/theirs" not in found.values()
    assert "/theirs" not in shared_folder.environment(None).values()


def test_metrics_that_already_go_to_an_inherited_folder_are_refused(monkeypatch):
    """prometheus_client decides when it is imported, which cannot be undone."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/theirs")
    monkeypatch.setitem(sys.modules, "prometheus_client", object())
    with pytest.raises(SettingsError, match="start the server without that variable"):
        shared_folder.forget_inherited()
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == "/theirs"
