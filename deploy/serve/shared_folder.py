"""The folder that the workers of one server share: their metrics, and what became of trials.

Its supervisor and workers hold a lock on it for as long as they live. A folder without a holder is
left over from a server that was killed with all its workers; the next server removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from .settings import SettingsError

_PREFIX = "fanin-workers-"
# prometheus_client's own variable, which names the folder to the workers, and its former name.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_NAMES = (VARIABLE, VARIABLE.lower())


def create() -> tuple[Path, int]:
    """Make the folder; returns it and the descriptor that holds its lock. OSError if it cannot.

    The lock is held until every process that has inherited the descriptor has ended.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # no locks here: then nobody can take it for abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return path, descriptor
        os.close(descriptor)  # another server was quicker to lock it, and has removed it


def remove(path: Path) -> None:
    """Remove the folder and all in it; those who still count lose nothing but the files' names."""
    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> list[Path]:
    """Remove this user's folders whose servers are gone; returns those that were."""
    found = []
    with contextlib.suppress(OSError):  # a temporary folder that may not be listed
        found = [item.path for item in os.scandir(tempfile.gettempdir())]
    named = [Path(path) for path in found if os.path.basename(path).startswith(_PREFIX)]
    return [path for path in named if _remove_if_abandoned(path)]


def _remove_if_abandoned(path: Path) -> bool:
    """Remove nothing but the files of a folder as ``create`` makes it, reached by no link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        state = os.fstat(descriptor)
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) != stat.S_IRWXU:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir(descriptor):
            os.unlink(name, dir_fd=descriptor)
        os.rmdir(path)
        return True
    except OSError:  # it is locked, so its server lives; or it is not as it was made
        return False
    finally:
        os.close(descriptor)


def current() -> Path | None:
    """Return the folder that the supervisor gave to this worker; None where there is none."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def environment(path: Path | None) -> dict[str, str]:
    """Copy the environment for another process, with this folder instead of an inherited one."""
    kept = {name: value for name, value in os.environ.items() if name not in _NAMES}
    return kept if path is None else {**kept, VARIABLE: str(path)}


def forget_inherited() -> None:
    """Ignore the folder of others' metrics that this process was started with; it is no worker.

    prometheus_client looks for one as it is imported. Raises SettingsError when that has happened:
    whatever is counted would go into those files.
    """
    found = [name for name in _NAMES if name in os.environ]
    if found and "prometheus_client" in sys.modules:
        raise SettingsError(
            f"prometheus_client was imported with {found[0]} in the environment, and would mix "
            "this server's metrics with those of others: start the server without that variable"
        )
    for name in found:
        del os.environ[name]
