"""Hooks that see the gradients of sparse layers after each backward pass.

Before one, a layer's window forgets the gradients of passes whose ``.grad`` was zeroed since. No
step will use them: SAM's first pass, or a loss that was computed only to look at it.
"""

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook

from .sparse_layer import SparseLayer

Callback = Callable[[SparseLayer], None]
Current = Callable[[SparseLayer], SparseLayer]


def hook_gradients(
    model: nn.Module,
    layers: Collection[SparseLayer],
    current: Current,
    after_backward: Callback,
) -> list[RemovableHandle]:
    """Call ``after_backward`` with a layer when a backward pass has written its ``.grad``.

    Args:
        model: the model.
        layers: its sparse layers.
        current: gives the layer that the model holds now instead of one of these.
        after_backward: called with one of these.

    """
    handles = []
    # torch does not annotate gradient hooks. FSDP2 writes .grad itself and calls those of the
    # second kind only.
    for layer in layers:
        if layer.sharding is None:
            before = unserializable_hook(partial(_before_accumulation, layer, current))  # type: ignore[no-untyped-call]
            handles.append(layer.weight.register_hook(before))  # type: ignore[no-untyped-call]
        after = partial(_after_accumulation, layer, after_backward)
        handles.append(layer.weight.register_post_accumulate_grad_hook(after))  # type: ignore[no-untyped-call]
    sharded = [layer for layer in layers if layer.sharding is not None]
    if sharded:
        forward = torch.compiler.disable(partial(_before_forward, sharded))  # type: ignore[no-untyped-call]
        handles.append(model.register_forward_pre_hook(forward))
    return handles


def _after_accumulation(layer: SparseLayer, after_backward: Callback, _: nn.Parameter) -> None:
    after_backward(layer)


def _before_accumulation(layer: SparseLayer, current: Current, _: Tensor) -> None:
    grad, window = layer.weight.grad, current(layer).window
    if window.is_pending and (grad is None or not bool(grad.any())):
        window.discard_pending()


def _before_forward(layers: Collection[SparseLayer], *_: object) -> None:
    """Do for sharded layers what ``_before_accumulation`` does, before the forward pass.

    One layer's part may be all zeros in one process alone, so those of all layers are asked.
    """
    pending = [layer for layer in layers if layer.window.is_pending]
    parts = (layer.local_gradient for layer in pending)
    zeroed = not any(part is not None and bool(part.any()) for part in parts)
    for layer in pending:
        if zeroed or layer.weight.grad is None:
            layer.window.discard_pending()
