"""The CUDA bindings on a GPU, and the same interface to the emulation."""

from __future__ import annotations

import importlib
import os

import pytest

from fanin.deploy.bench.engines.cuda_binding import EmulatedConv, EmulatedGemm
from fanin.ort_ops import cuda_kernel_table


class Emulation:
    PackedGemm, PackedConv = EmulatedGemm, EmulatedConv


def kernel_of(layout: str, activations: str, op: str = "CondensedGemm") -> str:
    """The row of an op of that layout."""
    return next(
        row.name
        for row in cuda_kernel_table()
        if (row.op, row.layout, row.activations) == (op, layout, activations)
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
