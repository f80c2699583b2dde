"""Output files are complete or absent, and only regular files are ever replaced."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanin._base.atomic import (
    atomic_file,
    is_scratch,
    output_folder,
    output_path,
    publish,
    staging_folder,
    write_file,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_complete_or_absent(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with contextlib.suppress(ZeroDivisionError), atomic_file(target) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    with atomic_file(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert write_file(target, "größer\n") == target
    assert target.read_bytes() == "größer\n".encode()
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "by a link"])
def test_devices_pipes_and_sockets_are_refused_and_unchanged(tmp_path, kind, linked):
    special = tmp_path / "special"
    if kind == "pipe":
        os.mkfifo(special)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(special))
    else:
        try:
            os.mknod(special, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # what /dev/null is
        except PermissionError:
            pytest.skip("only root makes devices")
    before = special.stat()
    target = special
    if linked:
        target = tmp_path / "link"
        target.symlink_to(special)
    with pytest.raises(OSError, match=f"{target.name} is a {kind}; choose an output path"):
        write_file(target, "x")
    after = special.stat()
    assert (after.st_ino, after.st_mode, after.st_rdev) == (
        before.st_ino,
        before.st_mode,
        before.st_rdev,
    )


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "dangling"])
def test_a_link_stays_and_its_target_is_written(tmp_path, there):
    """Through a second, relative link into another folder."""
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    real, second, first = tmp_path / "far" / "real", tmp_path / "far" / "b", tmp_path / "near" / "a"
    second.symlink_to("real")
    first.symlink_to("../far/b")
    if there:
        real.write_text("old")
    assert output_path(first) == real
    with staging_folder(first) as scratch:
        assert scratch.parent == real.parent
    write_file(first, "new")
    assert first.is_symlink()
    assert second.is_symlink()
    assert not real.is_symlink()
    assert real.read_text() == "new"
    assert names(tmp_path / "near") == ["a"]
    assert names(tmp_path / "far") == ["b", "real"]


def test_paths_that_open_refuses_are_refused_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("missing/file")
    for path, kind, sentence in (
        (tmp_path, IsADirectoryError, "is a folder; name a file in it"),
        (tmp_path / "no" / "file", FileNotFoundError, "no does not exist; create it first"),
        (tmp_path / "file" / "x", NotADirectoryError, "file is not a folder; choose another"),
        (tmp_path / "astray", FileNotFoundError, "missing, which .*astray links to, does not exis"),
        (tmp_path / "loop", OSError, "loop cannot be written .Too many levels of symbolic links"),
        (tmp_path / ("n" * 300), OSError, "cannot be written .File name too long.; choose another"),
    ):
        with pytest.raises(kind, match=sentence):
            write_file(path, "x")
    assert names(tmp_path) == ["astray", "file", "loop"]


def test_a_file_that_is_open_and_has_no_name_is_refused(tmp_path):
    with (tmp_path / "gone").open("w") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(OSError, match="links to a file without a name"):
            write_file(f"/proc/self/fd/{file.fileno()}", "x")
    assert names(tmp_path) == []


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077, 0o000])
def test_a_new_file_has_the_permissions_that_open_gives(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_file(tmp_path / "file", "x")
        with staging_folder(tmp_path / "staged") as scratch:
            (scratch / "secret").write_text("x")
            (scratch / "secret").chmod(0o600)  # as some libraries write theirs
            publish(scratch / "secret", tmp_path / "staged")
        (tmp_path / "opened").write_text("x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o666 & ~umask}


def test_a_replaced_file_keeps_its_permissions_and_owner(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    if os.geteuid() == 0:
        os.chown(target, 12345, 23456)
    target.chmod(0o640)
    before = target.stat()
    write_file(target, "new")
    after = target.stat()
    assert target.read_text() == "new"
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_other_hard_links_keep_the_older_content(tmp_path):
    target, other = tmp_path / "file", tmp_path / "other"
    target.write_text("old")
    os.link(target, other)
    write_file(target, "new")
    assert (target.read_text(), other.read_text()) == ("new", "old")


def test_write_protected_files_and_folders_are_refused(tmp_path):
    """As a user who is subject to permissions."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("old")
    (folder / "file").chmod(0o444)
    (tmp_path / "closed").mkdir(mode=0o555)
    script = """
import os, sys
from fanin._base.atomic import output_folder, write_file
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
for write, path in (
    (lambda path: write_file(path, "x"), "folder/file"),
    (lambda path: write_file(path, "x"), "closed/file"),
    (output_folder, "closed"),
    (output_folder, "closed/new"),
):
    try:
        write(path)
    except PermissionError as error:
        print(error)
"""
    for path in [*tmp_path.parents, tmp_path, folder]:
        if path.stat().st_uid == os.geteuid() and os.geteuid() == 0 and "pytest" in str(path):
            path.chmod(path.stat().st_mode | 0o005)
    folder.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    choose = "choose another output"
    assert done.stdout.splitlines() == [
        f"folder/file is write-protected; {choose} path",
        f"the folder closed cannot be written (Permission denied); {choose} path",
        f"the folder closed cannot be written (Permission denied); {choose} path",
        f"cannot create the folder closed/new (Permission denied); {choose} folder",
    ]
    assert (folder / "file").read_text() == "old"
    assert names(tmp_path / "closed") == []


@pytest.mark.parametrize("length", [255, 240])
def test_the_longest_name_that_the_system_takes_can_be_written(tmp_path, length):
    target = tmp_path / ("n" * length)
    write_file(target, "x")
    assert names(tmp_path) == [target.name]


def test_a_full_disk_is_named_and_leaves_the_older_file(tmp_path):
    """Simulated by a limit on file sizes."""
    target = tmp_path / "file"
    target.write_text("old")
    script = """
import resource, sys
from fanin._base.atomic import write_file
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file("file", "x" * 2000)
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "file cannot be written (File too large); an older file is unchanged\n"
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_errors_of_other_files_are_not_blamed_on_the_output(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"No such file or directory: .*source"),
        atomic_file(tmp_path / "file") as file,
    ):
        file.write((tmp_path / "source").read_bytes())


def test_writers_at_a_time_do_not_meet(tmp_path):
    """Each file is complete, from one of the writers, and nothing else is left."""
    target, failed = tmp_path / "file", []

    def write(letter: str) -> None:
        try:
            for _ in range(40):
                write_file(target, letter * 5000)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if target.exists():
            content = target.read_text()
            assert content == content[0] * 5000
    assert failed == []
    assert names(tmp_path) == ["file"]


def test_only_scratch_folders_of_killed_writers_are_removed(tmp_path):
    script = """
import sys, time
from fanin._base.atomic import atomic_file
with atomic_file(sys.argv[1]) as file:
    file.write(b"x" * 10_000)
    file.flush()
    print("writing", flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", script, tmp_path / "file"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "writing\n"
            (scratch,) = tmp_path.iterdir()
            assert is_scratch(scratch.name)
            (tmp_path / ".fanin-notes").mkdir()
            write_file(tmp_path / "other", "x")
            assert scratch.is_dir()
        finally:
            process.send_signal(signal.SIGKILL)
    assert scratch.is_dir()
    output_folder(tmp_path)
    assert names(tmp_path) == [".fanin-notes", "other"]


def test_an_output_folder_is_made_and_a_file_in_its_place_is_named(tmp_path):
    assert output_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    assert names(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="choose another output folder"):
            output_folder(path)
    assert (tmp_path / "file").read_text() == "x"
