"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Write the file under another name and rename it: a reader never sees half of it.

    A symbolic link stays one: what it points to is replaced.
    """
    target = Path(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
