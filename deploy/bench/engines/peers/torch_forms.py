"""The layer in torch: dense, dense compiled, and the paper's condensed form compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from .....export.condensed import CondensedWeight
from ..protocol import Engine
from .remote import WORKER, Child, RemoteEngine

REMEDY = "run: pip install 'fanin[train]'"

FORMS = {
    "torch": "functional.linear, eager",
    "torch-compile": "functional.linear, torch.compile(mode='max-autotune'), frozen weights",
    "torch-gather": "(x[:, indices] * values).sum(-1), torch.compile(mode='max-autotune')",
}
"""Engines; the last is how SRigL's authors run their condensed layers (SRigL, section 4.4)."""


def torch_engine(
    name: str, weight: CondensedWeight, batch: int, threads: int, folder: Path
) -> Engine:
    """Make the engine of one of FORMS; its arrays go into ``folder``."""
    one = np.ones((1, 1), np.float32)
    child = Child(
        command=(sys.executable, str(WORKER)),
        kind="torch-gather" if name == "torch-gather" else "torch",
        layer=_layer(name, weight, batch, folder / f"{name}.npz"),
        null=_layer(name, CondensedWeight.from_dense(one, one[0]), 1, folder / f"{name}-null.npz"),
        columns=False,
        remedy=REMEDY,
    )
    return RemoteEngine(name, FORMS[name], child, threads, (batch, weight.out_features))


def _layer(name: str, weight: CondensedWeight, batch: int, path: Path) -> dict:
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
