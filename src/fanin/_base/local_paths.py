"""Paths are of local files: addresses of object stores and web servers are refused by name."""

import os
import re
import stat

# pathlib turns // into /. Two letters at least, as in Windows' drives there is one.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


class RemotePathError(FileNotFoundError):
    """A path that is an address; the message tells what to do."""


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Raise RemotePathError if a path is an address such as ``s3://bucket/model.onnx``.

    A local folder that is really named ``s3:`` is accepted where it exists.
    """
    text = os.fspath(path)
    found = _SCHEME.match(text) if isinstance(text, str) else None
    if found is None or os.path.lexists(f"{found[1]}:"):
        return
    if found[1].lower() == "file":
        raise RemotePathError(f"{text} is an address: give the path alone, without file://")
    address = re.sub(":/+", "://", text, count=1)
    raise RemotePathError(
        f"{address} is no local path, and nothing is read from or written to {found[1]}:// "
        "addresses: copy the file with the store's own tool (on Kubernetes in an init container), "
        "and give its local path"
    )


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a regular file, or a link to one.

    Unlike ``os.path.isfile``, and ``Path.is_file`` from Python 3.14 on, it does not call a file
    absent that is in a folder which may not be searched.

    Raises:
        OSError: the path cannot be looked up: permission denied, a name that is too long.

    """
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder, or a link to one.

    Raises:
        OSError: the path cannot be looked up, as by :func:`is_file`.

    """
    return stat.S_ISDIR(_mode(path))


def _mode(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
