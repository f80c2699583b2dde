"""Where the compiled operator library is installed, and the files with which builds find it."""

from __future__ import annotations

import sys
from pathlib import Path

_LIBRARY = {"win32": "fanin_ort_ops.dll", "darwin": "libfanin_ort_ops.dylib"}.get(
    sys.platform, "libfanin_ort_ops.so"
)
CUDA_LIBRARY = "libfanin_ort_ops_cuda.so"


def get_library_path() -> Path:
    """Return the absolute path of the compiled operator library.

    Any program that embeds ONNX Runtime can load it: ``RegisterCustomOpsLibrary`` in C and C++,
    ``SessionOptions.register_custom_ops_library`` in Python.

    Raises:
        FileNotFoundError: the library has not been built, or fanin is in a zip archive.

    """
    # An editable install has compiled files in site-packages and Python files in the source tree.
    # Both folders are in __path__, while __file__ would give only one of them.
    package = sys.modules[__name__.rpartition(".")[0]]
    folders = [Path(folder).resolve() for folder in package.__path__]
    for folder in folders:
        if (folder / _LIBRARY).is_file():
            return folder / _LIBRARY
    archive = _archive_of(folders[0])
    if archive is not None:
        raise FileNotFoundError(
            f"fanin is in the archive {archive}, from which the system cannot load the operator "
            f"library {_LIBRARY}; install fanin into a folder (pip install --target FOLDER fanin), "
            "or make the zip with a tool that unpacks it when it starts, such as shiv"
        )
    raise FileNotFoundError(
        f"the operator library {_LIBRARY} is not in {' or '.join(map(str, folders))}; "
        "build it with: pip install . (or pip install -e .) in fanin's source tree"
    )


def get_cuda_library_path() -> Path:
    """Return the absolute path of the library of the CUDA kernels, which the other one loads.

    It lies beside that one, or in the package fanin_cuda of the same site-packages.

    Raises:
        FileNotFoundError: it is not installed.

    """
    folder = get_library_path().parent
    for candidate in (folder, folder.parents[1] / "fanin_cuda"):
        if (candidate / CUDA_LIBRARY).is_file():
            return candidate / CUDA_LIBRARY
    raise FileNotFoundError(
        f"fanin's CUDA kernels are not installed: there is no {folder / CUDA_LIBRARY}; "
        "`fanin doctor` says how to get them"
    )


def get_cmake_folder() -> Path:
    """Return the folder of ``fanin-config.cmake``: ``find_package(fanin)`` with ``fanin_DIR``.

    Raises:
        FileNotFoundError: fanin was built without it.

    """
    return _build_files("cmake", "fanin-config.cmake")


def get_pkgconfig_folder() -> Path:
    """Return the folder of ``fanin.pc``, for ``PKG_CONFIG_PATH``.

    Raises:
        FileNotFoundError: fanin was built without it.

    """
    return _build_files("pkgconfig", "fanin.pc")


def _build_files(folder: str, file: str) -> Path:
    path = get_library_path().with_name(folder)
    if not (path / file).is_file():
        raise FileNotFoundError(f"{path / file} is missing; install fanin again")
    return path


def _archive_of(folder: Path) -> Path | None:
    return next((parent for parent in folder.parents if parent.is_file()), None)
