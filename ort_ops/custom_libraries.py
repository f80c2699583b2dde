"""Other people's custom-op libraries, which a file may need beside fanin's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._base.local_paths import RemotePathError, refuse_address


def library_paths(libraries: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the absolute paths of libraries, each once.

    Raises:
        ValueError: one is not there, with its path; or a single path stands for the list.

    """
    if isinstance(libraries, str | os.PathLike):
        raise ValueError(f"custom_op_libraries is {libraries!r}; it must be a list of paths")
    found = []
    for library in libraries:
        try:
            refuse_address(library)
        except RemotePathError as error:
            raise ValueError(f"the custom-op library {error}") from None
        path = Path(library).absolute()
        if not path.is_file():
            raise ValueError(f"the custom-op library {library} does not exist or is not a file")
        found.append(str(path))
    return tuple(dict.fromkeys(found))


def register_libraries(session_options: Any, libraries: Sequence[str]) -> None:
    """Register libraries with onnxruntime's SessionOptions, in place.

    Raises:
        ValueError: one cannot be registered, with its path and the reason.

    """
    for library in libraries:
        try:
            session_options.register_custom_ops_library(library)
        except Exception as error:  # the runtime's exceptions share no base class
            reason = str(error).removeprefix("[ONNXRuntimeError] : 1 : FAIL : ")
            raise ValueError(
                f"the custom-op library {library} cannot be registered: {reason}"
            ) from error
