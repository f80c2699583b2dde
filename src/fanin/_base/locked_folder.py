"""Scratch folders that are locked by the processes using them, and removed once none does.

A killed process cannot clean up, but its lock ends with it. So an unlocked folder is abandoned.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path


def create_locked(parent: str | Path, prefix: str, suffix: str = "") -> tuple[Path, int]:
    """Create a folder and lock it.

    Args:
        parent: Where to create it.
        prefix: How its name begins.
        suffix: How its name ends.

    Returns:
        The folder, and the descriptor that holds the lock until it is closed in this process and
        in all that have inherited it.

    Raises:
        OSError: If the folder cannot be created.

    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=parent))
        # Until it is locked, another process may consider it abandoned and remove it.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # without locks, no folder counts as abandoned
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def remove_abandoned(parent: str | Path, prefix: str, suffix: str = "") -> list[Path]:
    """Remove this user's folders with such names that no living process has locked.

    Folders with other permissions than ``create_locked`` gives, and links to folders, are left
    alone.

    Returns:
        The folders that were removed.

    """
    with contextlib.suppress(OSError):  # the parent may not be listed
        names = [name for name in os.listdir(parent) if name.startswith(prefix)]
        paths = [Path(parent, name) for name in names if name.endswith(suffix)]
        return [path for path in paths if _remove_if_abandoned(path)]
    return []


def _remove_if_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        state = os.fstat(lock)
        if state.st_uid != os.geteuid() or state.st_mode & 0o777 != stat.S_IRWXU:
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry in os.scandir(lock):  # through the descriptor: the path may be replaced
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=lock)
            else:
                os.unlink(entry.name, dir_fd=lock)
        os.rmdir(path)
        return True
    except OSError:  # it is in use, or cannot be removed
        return False
    finally:
        os.close(lock)
