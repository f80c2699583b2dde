"""The layer as a compressed sparse row matrix, in SciPy and in torch (MKL)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .....ort_ops.format.condensed import CondensedWeight
from ..protocol import Engine
from .remote import Child, RemoteEngine, null_layer

_EXTRAS = {"scipy-csr": "bench", "torch-csr": "train"}


def csr_engines(
    kind: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> list[Engine]:
    """Make the engines of ``kind``, ``scipy-csr`` or ``torch-csr``.

    CSR libraries multiply columns, [in, batch]. Beyond batch 1 there are two engines: one that gets
    rows as all others do and transposes them in its time, and ``-t``, whose input and output are
    transposed already.
    """
    layer = _save(folder / "csr.npz", weight)
    null = {**_save(folder / "csr-null.npz", null_layer()), "shape": [1, 1]}
    engines: list[Engine] = []
    for columns in (False, True) if batch > 1 else (False,):
        shape = [weight.in_features, batch] if columns else [batch, weight.in_features]
        child = Child(
            kind=kind,
            layer={**layer, "shape": shape, "columns": columns},
            null={**null, "columns": columns},
            remedy=f"run: pip install 'fanin[{_EXTRAS[kind]}]'",
            columns=columns,
        )
        name = f"{kind}-t" if columns else kind
        form = "CSR x [in, batch], transposes not timed" if columns else "CSR x [batch, in]"
        engines.append(RemoteEngine(name, form, child, threads, (batch, weight.out_features)))
    return engines


def _save(path: Path, weight: CondensedWeight) -> dict[str, Any]:
    entries = weight.is_entry()
    counts = np.zeros(weight.out_features + 1, np.int32)
    counts[1 + weight.rows] = entries.sum(axis=1)
    np.savez(
        path,
        data=weight.values[entries].astype(np.float32),
        indices=weight.indices[entries].astype(np.int32),
        indptr=np.cumsum(counts, dtype=np.int32),
        shape=np.array([weight.out_features, weight.in_features]),
        bias=weight.bias,
    )
    return {"arrays": str(path)}
