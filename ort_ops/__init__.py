"""The custom operators of the domain ``ai.fanin``: their library and its Python face.

Importing this package needs NumPy alone; neither torch nor onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cuda import CudaStatus, cuda_status
from .library import get_library_path

if TYPE_CHECKING:
    import onnxruntime

    from ._native import ConvKernelRow, CudaKernelRow, KernelRow

__all__ = [
    "CudaStatus",
    "conv_kernel_table",
    "cuda_kernel_table",
    "cuda_status",
    "get_library_path",
    "kernel_table",
    "register",
]


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Make the operators known to the sessions that are made with these options.

    Where the number of intra-op threads is known, set the session config entry ``fanin.threads`` to
    it first. Options that carry the operators already stay as they are.

    Args:
        session_options: an ``onnxruntime.SessionOptions``; it is changed in place.

    Raises:
        FileNotFoundError: the library has not been built.
        Exception: whatever ONNX Runtime raises, for instance if it is older than 1.17, or if the
            options carry the operators of another copy of the library.

    """
    session_options.register_custom_ops_library(str(get_library_path()))


def kernel_table() -> list[KernelRow]:
    """Return the dispatch table of CondensedGemm: which kernel serves what.

    A row names an instruction set, the batches, and the fan-ins and densities.

    The first row that fits decides. The environment variable ``FANIN_ISA`` forces an instruction
    set; it is read when a session is made.
    """
    from . import _native

    return _native.kernel_table()


def conv_kernel_table() -> list[ConvKernelRow]:
    """Return the dispatch table of CondensedConv, likewise: by the layer and the size of an image.

    A kernel that is chosen for two reasons has two rows.
    """
    from . import _native

    return _native.conv_kernel_table()


def cuda_kernel_table() -> list[CudaKernelRow]:
    """Return the dispatch table of both ops on a GPU: which kernel serves which type and batch.

    It is data, so builds without CUDA have it, too.
    """
    from . import _native

    return _native.cuda_kernel_table()
