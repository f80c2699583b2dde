"""Hooks on a model that are not part of its copies."""

from collections.abc import Callable

import torch
from torch import nn


class ModelHook:
    """A hook on a module; its deep copies, pickles and torch.export have one that does nothing.

    Args:
        action: called with the module; None: nothing is.

    """

    def __init__(self, action: Callable[[nn.Module], None] | None) -> None:
        self.action = action

    def __call__(self, module: nn.Module, _: object) -> None:
        """Take the module, and the inputs or keys that such hooks get."""
        if self.action is not None and not torch.compiler.is_exporting():
            self.action(module)

    def __reduce__(self) -> tuple[type["ModelHook"], tuple[None]]:
        return ModelHook, (None,)
