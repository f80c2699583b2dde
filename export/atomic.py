"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Give a scratch folder beside ``target``, on its file system, and remove it afterwards.

    Entering it is the proof that the folder of ``target`` can be written, so enter before work.

    Raises:
        FileNotFoundError, NotADirectoryError, PermissionError, OSError: with what to do.

    """
    folder = target.parent
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file in it")
    if not folder.exists():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; choose another output path")
    try:
        scratch = tempfile.mkdtemp(prefix=".fanin-", dir=folder)
    except OSError as error:
        raise type(error)(
            f"the folder {folder} cannot be written ({error.strerror}); choose another output path"
        ) from error
    try:
        yield Path(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def publish(staged: Path, target: Path) -> None:
    """Flush ``staged`` to disk and give it its final name, replacing a file of that name."""
    _sync(staged, os.O_RDONLY)
    os.replace(staged, target)
    _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
