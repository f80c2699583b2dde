"""The folder that the workers of one server share, for metrics and trial results.

The supervisor and the workers hold a lock on it while they live. A folder that nobody holds belongs
to a server that was killed with all its workers; the next server removes it.
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

from .settings import TOKEN_VARIABLE, SettingsError

_PREFIX = "fanin-workers-"
# prometheus_client's variable, which tells workers the folder, and its deprecated name.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_NAMES = (VARIABLE, VARIABLE.lower())


def create() -> tuple[Path, int]:
    """Create and lock the folder.

    Returns:
        The folder, and the descriptor that holds its lock until every process that inherits it has
        ended.

    Raises:
        OSError: If the folder cannot be created.

    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # no locks here: then nobody can take it for abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return path, descriptor
        os.close(descriptor)  # another server has locked and removed it in between


def remove(path: Path) -> None:
    """Remove the folder; workers still writing to its files continue undisturbed."""
    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> list[Path]:
    """Remove this user's folders whose servers are gone, and return them."""
    found = []
    with contextlib.suppress(OSError):  # a temporary folder that may not be listed
        found = [item.path for item in os.scandir(tempfile.gettempdir())]
    named = [Path(path) for path in found if os.path.basename(path).startswith(_PREFIX)]
    return [path for path in named if _remove_if_abandoned(path)]


def _remove_if_abandoned(path: Path) -> bool:
    """Remove a folder only if ``create`` made it: no links, no other owner, no subfolders."""
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
    except OSError:  # locked by a live server, or with other content than ours
        return False
    finally:
        os.close(descriptor)


def current() -> Path | None:
    """Return the folder that the supervisor gave this worker, if any."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def environment(path: Path | None) -> dict[str, str]:
    """Return the environment for a child process: with this folder, without the token."""
    dropped = (*_NAMES, TOKEN_VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept if path is None else {**kept, VARIABLE: str(path)}


def forget_inherited() -> None:
    """Ignore a metrics folder that the environment names: it is another program's.

    Raises:
        SettingsError: If prometheus_client has been imported already; it reads the variable at
            import, so metrics would go into that folder.

    """
    found = [name for name in _NAMES if name in os.environ]
    if found and "prometheus_client" in sys.modules:
        raise SettingsError(
            f"prometheus_client was imported with {found[0]} in the environment, and would mix "
            "this server's metrics with those of others: start the server without that variable"
        )
    for name in found:
        del os.environ[name]
