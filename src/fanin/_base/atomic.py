"""Atomic file output: a file appears under its name complete, or not at all.

It is written in a scratch folder next to its destination, flushed to disk and renamed. Readers, and
what is left by a crash or a full disk, see either the old file or the new one, never a part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .local_paths import refuse_address
from .locked_folder import create_locked, remove_abandoned

_PREFIX, _SUFFIX = ".fanin-", ".tmp"

_KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def output_path(path: str | os.PathLike[str]) -> Path:
    """Return the file that writing to ``path`` would create or replace, following links.

    Refuses what ``open(path, "w")`` would refuse, and devices, pipes and sockets, too, since they
    cannot be replaced by renaming.

    Raises:
        FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, OSError: The
            message tells what to do.

    """
    refuse_address(path)
    path = Path(path)
    found = _stat(path)
    if found is not None:
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(f"{path} is a folder; name a file in it")
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
            raise OSError(f"{path} is {kind}; choose an output path that is a file or is new")
        effective = os.access in os.supports_effective_ids
        if not os.access(path, os.W_OK, effective_ids=effective):
            raise PermissionError(f"{path} is write-protected; choose another output path")
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    folder = target.parent
    if found is None:
        shown = f"{folder}, which {path} links to," if target != path else f"{folder}"
        if _stat(folder) is None:
            raise FileNotFoundError(f"the folder {shown} does not exist; create it first")
    elif target != path and _stat(target) is None:
        # A deleted file that some process holds open, linked only from /proc.
        raise OSError(f"{path} links to a file without a name; choose another output path")
    return target


@contextmanager
def staging_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a scratch folder next to the file that ``path`` names; remove it on exit.

    Entering shows that the output can be written, so enter before expensive work. Scratch folders
    left by killed processes are removed.

    Raises:
        OSError: As :func:`output_path` does, and if the folder is not writable.

    """
    folder = output_path(path).parent
    scratch, lock = _create_scratch(folder)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def publish(staged: Path, path: str | os.PathLike[str]) -> None:
    """Flush ``staged`` to disk and rename it to ``path``, following links.

    ``staged`` must be in a :func:`staging_folder` for ``path``. If a file is replaced, its
    permissions and, if allowed, its owner are kept; other hard links to it keep the old
    content.

    Raises:
        OSError: As :func:`output_path` does, or if the system refuses; the old file is kept.

    """
    target = output_path(path)
    with named_errors(path):
        older = _stat(target)
        if older is None:
            os.chmod(staged, _ordinary_mode(staged.parent))
        else:
            _take_over(staged, older)
        _sync(staged, os.O_RDONLY)
        os.replace(staged, target)
    # The rename has succeeded, but some network file systems cannot flush a folder.
    with contextlib.suppress(OSError):
        _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that is renamed to ``path`` when the block succeeds.

    After an exception, ``path`` is unchanged. Permissions are those that ``open`` would give.

    Raises:
        OSError: As :func:`output_path` does, and if the content cannot be written.

    """
    with staging_folder(path) as scratch:
        staged = scratch / "new"
        with named_errors(path), staged.open("wb") as file:
            yield file
        publish(staged, path)


def write_file(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file, text as UTF-8, and return its path.

    Raises:
        OSError: as :func:`atomic_file` does.

    """
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def named_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the output's name to OS errors that name no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        elsewhere = error.filename is not None and not any(
            is_scratch(part) for part in Path(str(error.filename)).parts
        )
        if error.errno is None or elsewhere:
            raise
        raise type(error)(
            f"{os.fspath(path)} cannot be written ({error.strerror}); an older file is unchanged"
        ) from error


def output_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder unless it exists, and check that files can be written into it.

    Raises:
        FileExistsError, NotADirectoryError, PermissionError, OSError: The message tells what to do.

    """
    refuse_address(path)
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileExistsError(f"{folder} is not a folder; choose another output folder") from error
    except RecursionError:
        raise OSError(f"{folder} is nested too deeply; choose another output folder") from None
    except OSError as error:
        raise type(error)(
            f"cannot create the folder {folder} ({error.strerror}); choose another output folder"
        ) from error
    scratch, lock = _create_scratch(folder)
    os.rmdir(scratch)
    os.close(lock)
    return folder


def is_scratch(name: str) -> bool:
    """Return whether this is the name of a scratch folder, in use or left by a killed process."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise NotADirectoryError(
            f"{path.parent} is not a folder; choose another output path"
        ) from error
    except OSError as error:
        raise type(error)(
            f"{path} cannot be written ({error.strerror}); choose another output path"
        ) from error


def _create_scratch(folder: Path) -> tuple[Path, int]:
    """Create a locked scratch folder, and remove those that killed processes have left."""
    remove_abandoned(folder, _PREFIX, _SUFFIX)
    try:
        return create_locked(folder, _PREFIX, _SUFFIX)
    except OSError as error:
        raise type(error)(
            f"the folder {folder} cannot be written ({error.strerror}); choose another output path"
        ) from error


def _ordinary_mode(folder: Path) -> int:
    """Return the permissions that ``open`` gives a new file; some libraries give others."""
    probe = folder / f"mode{_SUFFIX}"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
        os.unlink(probe)


def _take_over(staged: Path, older: os.stat_result) -> None:
    """Copy the permissions and, as far as this process may, the owner of an older file."""
    for owner in (older.st_uid, older.st_gid), (-1, older.st_gid):
        with contextlib.suppress(OSError):
            os.chown(staged, *owner)
            break
    os.chmod(staged, stat.S_IMODE(older.st_mode) & 0o777)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
