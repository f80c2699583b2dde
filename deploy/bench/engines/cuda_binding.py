"""The CUDA kernels through their binding; and the same binding over their emulation on the host."""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ort_ops import cuda_kernel_table
from ....ort_ops.format.condensed import CondensedWeight
from .protocol import EngineUnavailableError

ACTIVATIONS = ("float32", "float16", "bfloat16")
_NOT_BUILT = "built without FANIN_EMULATION; see docs/cuda.md"


def open_binding(*, emulated: bool) -> Any:
    """Return ``fanin.ort_ops._cuda``, or a stand-in that runs the kernels' programs on the host.

    Both have ``kernel_table()`` and ``PackedGemm`` with the same arguments, so that what runs on a
    GPU is what runs without one.

    Raises:
        EngineUnavailableError: this build has no CUDA kernels (or no emulation), or there is no
            device.

    """
    if emulated:
        _module("_cuda_emulation", _NOT_BUILT)
        return _Emulation
    binding = _module("_cuda", "built without CUDA kernels; see docs/cuda.md")
    if not binding.device_count():
        raise EngineUnavailableError("there is no CUDA device; fanin doctor says what is missing")
    return binding


def layer_arrays(weight: CondensedWeight) -> dict[str, Any]:
    """Return what a binding takes of a layer."""
    return {
        "values": bits(weight.values),
        "value_type": weight.values.dtype.name,
        "indices": weight.indices,
        "rows": weight.rows,
        "bias": weight.bias,
        "in_features": weight.in_features,
    }


def bits(array: np.ndarray) -> np.ndarray:
    """Return numbers of 16 bits as their bits, uint16, and float32 as it is."""
    return array if array.dtype == np.float32 else array.view(np.uint16)


class EmulatedGemm:
    """``_cuda.PackedGemm`` over the emulation: the same arguments, by the same names.

    ``layer`` is what layer_arrays returns.
    """

    def __init__(
        self,
        *,
        activations: str,
        device: int = 0,  # noqa: ARG002 (the emulation has one)
        min_batch: int = 1,
        max_batch: int | None = None,  # noqa: ARG002 (it packs in every run)
        kernel: str | None = None,
        **layer: Any,
    ):
        self._emulation = _module("_cuda_emulation", _NOT_BUILT)
        self._layer, self._activations = layer, activations
        self._kernel, self._first_batch = kernel, min_batch

    def run(
        self,
        *,
        x: int,
        batch: int,
        y: int,
        residual: int = 0,
        clip_min: float = -math.inf,
        clip_max: float = math.inf,
        stream: int = 0,  # noqa: ARG002 (runs are done when they return)
        tf32: bool = False,
    ) -> None:
        """Run on arrays by their addresses in the host's memory."""
        features, outputs = self._layer["in_features"], len(self._layer["bias"])
        self.run_arrays(
            _at(x, (batch, features), self._activations),
            y=_at(y, (batch, outputs), self._activations),
            residual=_at(residual, (batch, outputs), self._activations) if residual else None,
            clip_min=clip_min,
            clip_max=clip_max,
            tf32=tf32,
        )

    def run_arrays(
        self,
        x: np.ndarray,
        *,
        y: np.ndarray,
        residual: np.ndarray | None = None,
        clip_min: float = -math.inf,
        clip_max: float = math.inf,
        shift: int = 0,  # noqa: ARG002 (addresses are the caller's)
        tf32: bool = False,
    ) -> dict[str, Any]:
        """Run on ``x [batch, in_features]``, 16-bit numbers as their bits; returns a report."""
        report: dict[str, Any] = self._emulation.run(
            kernel=self._kernel,
            **self._layer,
            x=x,
            activations=self._activations,
            residual=residual,
            y=y,
            clip_min=clip_min,
            clip_max=clip_max,
            tf32=tf32,
        )
        return report

    def info(self) -> list[dict[str, Any]]:
        """Describe the layout that serves the first batch."""
        kind = "float32" if self._activations == "float32" else "uint16"
        sizes = (self._layer["in_features"], len(self._layer["bias"]))
        x, y = (np.zeros((self._first_batch, size), kind) for size in sizes)
        report = self.run_arrays(x, y=y)
        return [
            {
                "kernel": report["kernel"],
                "bytes": report["packed_bytes"],
                "padding": report["padding"],
            }
        ]


class EmulatedConv:
    """``_cuda.PackedConv`` over the emulation: the same arguments, by the same names.

    ``layer`` is what layer_arrays returns, and the geometry with two axes.
    """

    def __init__(
        self,
        *,
        activations: str,
        device: int = 0,  # noqa: ARG002 (the emulation has one)
        conv_kernel: str | None = None,
        **layer: Any,
    ):
        self._emulation = _module("_cuda_emulation", _NOT_BUILT)
        self._layer, self._activations, self._kernel = layer, activations, conv_kernel

    def run(
        self,
        *,
        x: int,
        batch: int,
        height: int,
        width: int,
        y: int,
        residual: int = 0,
        clip_min: float = -math.inf,
        clip_max: float = math.inf,
        stream: int = 0,  # noqa: ARG002 (runs are done when they return)
        tf32: bool = False,
    ) -> None:
        """Run on arrays by their addresses in the host's memory."""
        given, sizes = self._layer, (height, width)
        pads = given["pads"]
        out = [
            (sizes[at] + pads[at] + pads[at + 2] - given["dilations"][at] * (k - 1) - 1)
            // given["strides"][at]
            + 1
            for at, k in enumerate(given["kernel"])
        ]
        images = (batch, len(given["bias"]), *out)
        self.run_arrays(
            _at(x, (batch, given["in_channels"], *sizes), self._activations),
            y=_at(y, images, self._activations),
            residual=_at(residual, images, self._activations) if residual else None,
            clip_min=clip_min,
            clip_max=clip_max,
            tf32=tf32,
        )

    def run_arrays(
        self,
        x: np.ndarray,
        *,
        y: np.ndarray,
        residual: np.ndarray | None = None,
        clip_min: float = -math.inf,
        clip_max: float = math.inf,
        gate_scale: float = 0.0,
        gate_shift: float = 1.0,
        shift: int = 0,  # noqa: ARG002 (addresses are the caller's)
        tf32: bool = False,
    ) -> None:
        """Run on ``x [batch, in_channels, height, width]``, 16-bit numbers as their bits."""
        self._emulation.run_conv(
            **self._layer,
            x=x,
            activations=self._activations,
            residual=residual,
            y=y,
            clip_min=clip_min,
            clip_max=clip_max,
            gate_scale=gate_scale,
            gate_shift=gate_shift,
            conv_kernel=self._kernel,
            tf32=tf32,
        )


def _at(address: int, shape: Sequence[int], activations: str) -> np.ndarray:
    """Return the array at an address; of 16-bit numbers their bits."""
    number = ctypes.c_float if activations == "float32" else ctypes.c_uint16
    return np.ctypeslib.as_array((number * math.prod(shape)).from_address(address)).reshape(shape)


class _Emulation:
    PackedGemm, PackedConv = EmulatedGemm, EmulatedConv

    @staticmethod
    def kernel_table() -> list[dict[str, Any]]:
        names = ("name", "layout", "activations", "min_batch", "max_batch", "proven", "tf32")
        return [
            {name: getattr(row, name) for name in names}
            for row in cuda_kernel_table()
            if row.op == "CondensedGemm"
        ]


def _module(name: str, reason: str) -> Any:
    try:
        return importlib.import_module(f"....ort_ops.{name}", __package__)
    except ImportError as error:
        raise EngineUnavailableError(f"fanin was {reason} ({error})") from None
