"""The layer in torch: dense, dense compiled, and the paper's condensed form compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .....ort_ops.format.condensed import CondensedWeight
from ..protocol import Engine
from .remote import Child, RemoteEngine, null_layer

_FORMS = {
    "torch": "functional.linear, eager",
    "torch-compile": "functional.linear, torch.compile(mode='max-autotune'), frozen weights",
    "torch-gather": "(x[:, indices] * values).sum(-1), torch.compile(mode='max-autotune')",
}
"""Engines; the last is how SRigL's authors run their condensed layers (SRigL, section 4.4)."""


def torch_engine(
    name: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> Engine:
    """Make the engine of one of _FORMS; its arrays go into ``folder``."""
    child = Child(
        kind="torch-gather" if name == "torch-gather" else "torch",
        layer=_save(name, weight, batch, folder / f"{name}.npz"),
        null=_save(name, null_layer(), 1, folder / f"{name}-null.npz"),
        remedy="run: pip install 'fanin[train]'",
    )
    return RemoteEngine(name, _FORMS[name], child, threads, (batch, weight.out_features))


def _save(name: str, weight: CondensedWeight, batch: int, path: Path) -> dict[str, Any]:
    """Write the layer's arrays; returns the worker's description of it."""
    if name == "torch-gather":
        np.savez(
            path,
            # Padding, where rows are unequal, holds zeros at columns that are read anyway.
            values=weight.values.astype(np.float32),
            indices=weight.indices,
            rows=weight.rows,
            bias=weight.bias,
        )
    else:
        np.savez(path, weight=weight.to_dense(), bias=weight.bias)
    shape = [batch, weight.in_features]
    return {"arrays": str(path), "shape": shape, "compile": name == "torch-compile"}
