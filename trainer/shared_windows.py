"""Gradient windows of all layers over the data-parallel processes.

Each process has the whole window of a replicated weight and one part of that of a sharded weight,
whose gradients FSDP2 has averaged.
"""

from collections.abc import Collection

import torch

from .methods import SparseMethod
from .processes import Processes
from .sparse_layer import SparseLayer


def commit_windows(layers: Collection[SparseLayer], processes: Processes) -> None:
    """Add the pending gradients to the windows; every process must call it.

    The gradient of a sharded layer counts only if all of its parts are finite.
    """
    finite = _finite(layers)
    sharded = [layer for layer in layers if layer.sharding is not None]
    if sharded:
        failures = processes.sum_values(
            [not finite[layer.name] for layer in sharded], sharded[0].weight.device
        )
        finite |= {layer.name: not count for layer, count in zip(sharded, failures, strict=True)}
    for layer in layers:
        layer.window.commit(finite=finite[layer.name])


def _finite(layers: Collection[SparseLayer]) -> dict[str, bool]:
    """Return by name whether the pending gradients are finite; waits for the device only once."""
    found = {layer.name: layer.window.pending_is_finite() for layer in layers}
    pending = {name: finite for name, finite in found.items() if finite is not None}
    result = dict.fromkeys(found, True)
    if pending:
        device = next(iter(pending.values())).device
        together = torch.stack([finite.to(device) for finite in pending.values()])
        result |= zip(pending, together.tolist(), strict=True)
    return result


@torch.no_grad()
def average_windows(
    layers: Collection[SparseLayer], method: SparseMethod, processes: Processes
) -> None:
    """Average the windows of replicated layers over the processes; every process must call it."""
    if processes.count == 1 or not method.uses_gradient:
        return
    for layer in layers:
        if layer.sharding is None:
            layer.window.average_over(layer.weight, processes.sum_, processes.count)
