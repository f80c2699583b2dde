"""The CUDA bindings on a GPU, and the same interface to the emulation."""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest

from fanin.deploy.bench.engines.cuda_binding import EmulatedGemm
from fanin.ort_ops import cuda_kernel_table


class EmulatedConv:
    """The interface of ``_cuda.PackedConv``, with the same arguments, to the emulation."""

    def __init__(self, *, activations, device=0, **layer):  # noqa: ARG002
        self._emulation = importlib.import_module("fanin.ort_ops._cuda_emulation")
        self._layer, self._activations = layer, activations

    def run_arrays(
        self,
        x,
        *,
        y,
        residual=None,
        clip_min=-np.inf,
        clip_max=np.inf,
        gate_scale=0.0,
        gate_shift=1.0,
        shift=0,  # noqa: ARG002
    ):
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
        )


class Emulation:
    PackedGemm, PackedConv = EmulatedGemm, EmulatedConv


def kernel_of(layout: str, activations: str) -> str:
    """The row of CondensedGemm of that layout."""
    return next(
        row.name
        for row in cuda_kernel_table()
        if (row.op, row.layout, row.activations) == ("CondensedGemm", layout, activations)
    )


def open_device():
    """The GPU binding; skips the test if there is no GPU, unless one is required."""
    if os.environ.get("FANIN_REQUIRE_GPU"):
        binding = importlib.import_module("fanin.ort_ops._cuda")
        assert binding.device_count()
        return binding
    binding = pytest.importorskip("fanin.ort_ops._cuda", reason="built without CUDA")
    if binding.device_count() == 0:
        pytest.skip("no CUDA device")
    return binding
