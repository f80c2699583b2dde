"""The custom operators of the domain ``ai.fanin``: their library and its Python API.

Importing this package requires NumPy only, neither torch nor onnxruntime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .binding import MissingBindingError
from .cuda import CudaDeviceFacts, CudaStatus, cuda_status, takes_unproven_kernels
from .library import get_library_path

if TYPE_CHECKING:
    import onnxruntime

    from ._native import (
        ConvKernelRow,
        CudaKernelRow,
        KernelRow,
        QuantizedConvKernelRow,
        QuantizedKernelRow,
    )

__all__ = [
    "CudaDeviceFacts",
    "CudaStatus",
    "MissingBindingError",
    "conv_kernel_table",
    "cuda_kernel_serving",
    "cuda_kernel_table",
    "cuda_status",
    "get_library_path",
    "kernel_table",
    "quantized_conv_kernel_table",
    "quantized_kernel_table",
    "register",
    "takes_unproven_kernels",
]


def __getattr__(name: str) -> Any:
    """Import the binding when it is first used; without one, say what to do."""
    if name != "_native":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f"{__name__}._native")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}._native":
            raise
        raise MissingBindingError from None


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Register the operators for all sessions that are created with these options.

    If the number of intra-op threads is known, set the session config entry ``fanin.threads`` to it
    first. Registering the same library again has no effect.

    Args:
        session_options: changed in place.

    Raises:
        FileNotFoundError: the library has not been built.
        Exception: whatever ONNX Runtime raises, for instance if it is older than 1.17, or if the
            operators of another copy of the library are registered already.

    """
    session_options.register_custom_ops_library(str(get_library_path()))


def kernel_table() -> list[KernelRow]:
    """Return the dispatch table of CondensedGemm, which decides the kernel of a layer.

    A row states a kernel's instruction set and the batches, fan-ins and densities that it serves;
    the first row that fits is used. The environment variable ``FANIN_ISA`` forces an instruction
    set; it is read when a session is created.
    """
    from . import _native

    return _native.kernel_table()


def conv_kernel_table() -> list[ConvKernelRow]:
    """Return the dispatch table of CondensedConv, by properties of the layer and image size.

    A kernel with two alternative conditions has two rows.
    """
    from . import _native

    return _native.conv_kernel_table()


def quantized_kernel_table() -> list[QuantizedKernelRow]:
    """Return the dispatch table of layers of int8 weights, as `kernel_table` of the others."""
    from . import _native

    return _native.quantized_kernel_table()


def quantized_conv_kernel_table() -> list[QuantizedConvKernelRow]:
    """Return the dispatch table of convolutions of int8 weights."""
    from . import _native

    return _native.quantized_conv_kernel_table()


def cuda_kernel_table() -> list[CudaKernelRow]:
    """Return the dispatch table of both ops on a GPU: the kernel for each type and batch.

    Builds without CUDA return it as well.
    """
    from . import _native

    return _native.cuda_kernel_table()


def cuda_kernel_serving(
    *,
    activations: str,
    in_features: int,
    out_features: int,
    weights: int,
    batch: int,
    multiprocessors: int,
    shared_bytes: int,
    capability: int,
    unproven: bool,
) -> CudaKernelRow:
    """Return the row of that table which a session on a GPU takes for a batch of a CondensedGemm.

    Args:
        activations: type of X, in which the values are numbers: float32, float16 or bfloat16.
        in_features: columns of the weight.
        out_features: rows of it.
        weights: stored entries.
        batch: rows of X.
        multiprocessors: of the GPU.
        shared_bytes: of shared memory that a block can have there.
        capability: ten times the major version of its compute capability, and the minor one.
        unproven: whether kernels may be taken that have not run on a GPU yet.

    """
    from . import _native

    return _native.cuda_kernel_serving(
        activations=activations,
        in_features=in_features,
        out_features=out_features,
        weights=weights,
        batch=batch,
        multiprocessors=multiprocessors,
        shared_bytes=shared_bytes,
        capability=capability,
        unproven=unproven,
    )
