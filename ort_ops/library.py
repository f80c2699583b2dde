"""Where the compiled operator library is installed."""

from __future__ import annotations

import sys
from pathlib import Path

_LIBRARY = "libfanin_ort_ops.so"


def get_library_path() -> Path:
    """Return the absolute path of the compiled operator library.

    Any program that embeds ONNX Runtime can load it: ``RegisterCustomOpsLibrary`` in C and C++,
    ``SessionOptions.register_custom_ops_library`` in Python.

    Raises:
        FileNotFoundError: the library has not been built.

    """
    # An editable install has compiled files in site-packages and Python files in the source tree.
    # Both folders are in __path__, while __file__ would give only one of them.
    package = sys.modules[__name__.rpartition(".")[0]]
    folders = [Path(folder).resolve() for folder in package.__path__]
    for folder in folders:
        if (folder / _LIBRARY).is_file():
            return folder / _LIBRARY
    raise FileNotFoundError(
        f"the operator library {_LIBRARY} is not in {' or '.join(map(str, folders))}; "
        "build it with: pip install . (or pip install -e .) in fanin's source tree"
    )
