"""What to do where the compiled binding to NumPy, ``fanin.ort_ops._native``, is missing."""

from __future__ import annotations

import platform
import sys


class MissingBindingError(ImportError):
    """The installation has no binding for the Python that runs; models do without it.

    The wheel for any Python consists of the op library and Python code only. Kernel tables and
    benches, the status of CUDA, calibrations and the kernels' self-test call the binding.
    """

    def __init__(self) -> None:
        kind = platform.python_implementation()
        version = ".".join(map(str, sys.version_info[:2])) + getattr(sys, "abiflags", "")
        super().__init__(
            f"this installation of fanin has no binding for {kind} {version}, which kernel tables "
            "and benches, calibrations and CUDA need; models run on the CPU without it. Use a "
            "Python that docs/installing.md lists, or build fanin from source: "
            "pip install --force-reinstall --no-deps --no-binary fanin fanin"
        )
