"""Imports the installed ONNX Runtime on demand; which wheel to install is the user's choice."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from types import ModuleType

from .errors import SessionError

# The op library needs API version 17; older runtimes lack KernelContext_ParallelFor.
MINIMUM_VERSION = (1, 17)

# All wheels that provide the package `onnxruntime`.
DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
)


def load_onnxruntime() -> ModuleType:
    """Import the ``onnxruntime`` package.

    Returns:
        The module, of version 1.17 or newer.

    Raises:
        SessionError: If it is missing, broken or too old.

    """
    try:
        runtime = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise _broken(error) from error
        raise SessionError(
            "ONNX Runtime is not installed",
            "Install one of its wheels: pip install onnxruntime (CPU) or onnxruntime-gpu.",
        ) from error
    except ImportError as error:
        raise _broken(error) from error
    version = getattr(runtime, "__version__", None)
    if version is None or not hasattr(runtime, "InferenceSession"):
        place = getattr(runtime, "__file__", None) or list(getattr(runtime, "__path__", []))
        raise SessionError(
            f"the module onnxruntime at {place} is not ONNX Runtime",
            "Rename it, or run from another folder, so that the installed wheel is imported.",
        )
    if not is_supported(version):
        raise SessionError(
            f"onnxruntime {version} is too old for fanin's ops, which need 1.17 or newer",
            "Upgrade it: pip install --upgrade onnxruntime (or onnxruntime-gpu).",
        )
    return runtime


def is_supported(version: str) -> bool:
    """Return whether this version of ONNX Runtime can load the op library."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= MINIMUM_VERSION


def installed_distributions() -> dict[str, str]:
    """Return name and version of each installed wheel that provides ``onnxruntime``."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _broken(error: ImportError) -> SessionError:
    # Under NumPy 2, onnxruntime 1.17 and 1.18 raise an ImportError without a message.
    wheels = installed_distributions()
    names = ", ".join(f"{name} {version}" for name, version in wheels.items()) or "onnxruntime"
    return SessionError(
        f"{names} is installed but cannot be imported ({error or 'ImportError without a message'})",
        "Releases before 1.19 need numpy<2; otherwise install it again with pip install "
        "--force-reinstall.",
    )
