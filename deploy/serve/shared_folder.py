"""The folder that the workers of one server share, for metrics and trial results.

The supervisor and the workers hold a lock on it while they live. A folder that nobody holds belongs
to a server that was killed with all its workers; the next server removes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from ..._base.locked_folder import create_locked, remove_abandoned
from .settings import TOKEN_VARIABLE, SettingsError

_PREFIX = "fanin-workers-"
# prometheus_client's variable, which tells workers the folder, and its deprecated name.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_NAMES = (VARIABLE, VARIABLE.lower())


def create() -> tuple[Path, int]:
    """Create the folder; raises OSError.

    Returns:
        The folder, and the descriptor of its lock for the workers to inherit.

    """
    return create_locked(tempfile.gettempdir(), _PREFIX)


def remove(path: Path) -> None:
    """Remove the folder; workers still writing to its files continue undisturbed."""
    shutil.rmtree(path, ignore_errors=True)


def remove_stale() -> list[Path]:
    """Remove this user's folders whose servers are gone, and return them."""
    return remove_abandoned(tempfile.gettempdir(), _PREFIX)


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
