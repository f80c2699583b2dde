"""Opens a model and prints the result as JSON; ONNX Runtime logs to stderr.

argv has the model, and other custom-op libraries after it. Runs in a separate process, which
contains crashes and is the only way to capture a session's log.
"""

from __future__ import annotations

import json
import sys

from .errors import SessionError
from .runtime import load_onnxruntime
from .session import open_session


def main() -> None:
    """Print {"problem", "remedy"}, or {"inputs", "outputs"} as lists of strings, and "metadata"."""
    result: dict[str, str | list[str] | dict[str, str]]
    try:
        options = load_onnxruntime().SessionOptions()
        options.log_severity_level = 1  # INFO: at this level the ops log their kernels
        model, *libraries = sys.argv[1:]
        session = open_session(model, threads=1, options=options, custom_op_libraries=libraries)
        result = {
            kind: [f"{item.name} {item.type}{_shape(item.shape)}" for item in items]
            for kind, items in (
                ("inputs", session.get_inputs()),
                ("outputs", session.get_outputs()),
            )
        }
        metadata = session.get_modelmeta().custom_metadata_map
        result["metadata"] = {key: metadata[key] for key in metadata if key.startswith("fanin.")}
    except SessionError as error:
        result = {"problem": error.problem, "remedy": error.remedy}
    print(json.dumps(result))


def _shape(shape: list[int | str | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


if __name__ == "__main__":
    main()
