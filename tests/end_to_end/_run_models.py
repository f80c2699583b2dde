"""Run every model of a folder: a program for environments with NumPy and onnxruntime only.

    python _run_models.py FOLDER [LIBRARY]

For each NAME.onnx with the inputs NAME.npz it writes the output as NAME.npy, or the exception's
text as NAME.txt. The library is registered twice for a model whose name begins with "twice".
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def outcome(model: Path, library: str | None) -> np.ndarray | Exception:
    """The output of a model, or its exception."""
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        if library:
            options.add_session_config_entry("fanin.threads", "2")
            for _ in range(2 if model.stem.startswith("twice") else 1):
                options.register_custom_ops_library(library)
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        with np.load(model.with_suffix(".npz")) as feeds:
            return session.run(None, dict(feeds))[0]
    except Exception as error:
        return error


def main(folder: Path, library: str | None) -> None:
    """Run all; print the runtime's version."""
    for model in sorted(folder.glob("*.onnx")):
        result = outcome(model, library)
        if isinstance(result, Exception):
            model.with_suffix(".txt").write_text(f"{type(result).__name__}: {result}")
        else:
            np.save(model.with_suffix(".npy"), result)
    print(onnxruntime.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
