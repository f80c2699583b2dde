"""Torch modules that hold a condensed weight, and the torch operator behind them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ..ort_ops.format.condensed import CondensedWeight


@torch.library.custom_op("fanin::condensed_gemm", mutates_args=())
def condensed_gemm(
    x: Tensor,
    values: Tensor,
    indices: Tensor,
    bias: Tensor,
    rows: Tensor,
    in_features: int,
    out_features: int,
    layer: str,  # noqa: ARG001
) -> Tensor:
    """Compute ``ai.fanin::CondensedGemm`` without residual and clip, eagerly and for export.

    It scatters the weight and multiplies densely: right for every device, in no way fast. ``layer``
    is the module's name in its model; the exporter names the node after it.

    Args:
        x: float ``[..., in_features]``.
        values: ``[active, fan_in]``, float32, float16 or bfloat16; widened to the dtype of ``x``.
        indices: uint16 or int32 ``[active, fan_in]``.
        bias: ``[out_features]``, dtype of ``x``.
        rows: int32 ``[active]``.
        in_features: columns of the dense weight.
        out_features: rows of the dense weight.
        layer: name of the node.

    """
    stored = x.new_zeros(values.shape[0], in_features)
    stored.scatter_add_(1, indices.to(torch.int64), values.to(x.dtype))
    weight = x.new_zeros(out_features, in_features)
    weight[rows.to(torch.int64)] = stored
    return nn.functional.linear(x, weight, bias)


@condensed_gemm.register_fake
def _(
    x: Tensor,
    values: Tensor,  # noqa: ARG001
    indices: Tensor,  # noqa: ARG001
    bias: Tensor,  # noqa: ARG001
    rows: Tensor,  # noqa: ARG001
    in_features: int,
    out_features: int,
    layer: str,  # noqa: ARG001
) -> Tensor:
    torch._check(x.shape[-1] == in_features)
    return x.new_empty(*x.shape[:-1], out_features)


OPERATOR = torch.ops.fanin.condensed_gemm.default


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute as the model is written, on the CPU, whatever context the caller is in."""
    with torch.autocast("cpu", enabled=False), torch.device("cpu"):
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let attention call its layers: its fast path reads ``weight`` past their forward."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _tensor(array: np.ndarray) -> Tensor:
    # torch does not know NumPy's bfloat16; the bits are the same.
    if array.dtype.name == "bfloat16":
        return _tensor(array.view(np.uint16)).view(torch.bfloat16)
    with warnings.catch_warnings():
        # The array is read-only, and nothing in a module made for inference writes to it.
        warnings.filterwarnings("ignore", message=".*NumPy array is not writable.*")
        return torch.from_numpy(array)


class CondensedLinear(nn.Module):
    """A linear layer of a condensed weight; input ``[..., in_features]`` float32.

    It is made for export and inference: its arrays are buffers, nothing in it can be trained. It
    has no ``weight``, since torch code that reads ``module.weight`` (MultiheadAttention, the fast
    path of TransformerEncoderLayer) would bypass this forward and go on with a wrong tensor.
    """

    values: Tensor
    indices: Tensor
    rows: Tensor
    bias: Tensor

    def __init__(self, weight: CondensedWeight, name: str = "") -> None:
        super().__init__()
        self.in_features = weight.in_features
        self.out_features = weight.out_features
        self.name = name
        for part in ("values", "indices", "rows", "bias"):
            self.register_buffer(part, _tensor(getattr(weight, part)))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        y: Tensor = condensed_gemm(
            x,
            self.values,
            self.indices,
            self.bias,
            self.rows,
            self.in_features,
            self.out_features,
            self.name,
        )
        return y

    def extra_repr(self) -> str:
        """Tell ``print(model)`` the sizes."""
        active, fan_in = self.values.shape
        return f"{self.in_features}, {self.out_features}, active={active}, fan_in={fan_in}"
