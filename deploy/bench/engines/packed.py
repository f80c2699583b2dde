"""A condensed layer packed through the binding, without a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....export.condensed import CondensedWeight

if TYPE_CHECKING:
    from ....ort_ops._native import PackedGemm


def pack(weight: CondensedWeight, batch: int, kernel: str | None = None) -> PackedGemm:
    """Pack for one batch, by the kernel of that name or the one that the dispatch table takes."""
    from ....ort_ops import _native

    return _native.PackedGemm(
        weight.values,
        weight.indices,
        weight.rows,
        weight.bias,
        weight.in_features,
        weight.out_features,
        min_batch=batch,
        max_batch=batch,
        kernel=kernel,
    )
