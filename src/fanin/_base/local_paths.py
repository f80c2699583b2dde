"""Paths are of local files: addresses of object stores and web servers are refused by name."""

import os
import re

# pathlib turns // into /. Two letters at least, as in Windows' drives there is one.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def refuse_url(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if a path is an address such as ``s3://bucket/model.onnx``.

    A local folder that is really named ``s3:`` is accepted where it exists.
    """
    text = os.fspath(path)
    found = _SCHEME.match(text)
    if found is None or os.path.lexists(found[1] + ":"):
        return
    scheme = found[1].lower()
    address = re.sub(r":/+", "://", text, count=1)
    raise ValueError(
        f"{address} is no local path, and nothing is read from {scheme}:// addresses: download the "
        "file first (on Kubernetes in an init container) and give its path"
    )
