"""Hooks on a model that are not part of its copies."""

from collections.abc import Callable

from torch import nn


class ModelHook:
    """A hook on a module; deep copies and pickles of the module have one that does nothing.

    Args:
        action: called with the module; None: nothing is.

    """

    def __init__(self, action: Callable[[nn.Module], None] | None) -> None:
        self.action = action

    def __call__(self, module: nn.Module, _: object) -> None:
        """Take the module, and the inputs or keys that such hooks get."""
        if self.action is not None:
            self.action(module)

    def __reduce__(self) -> tuple[type["ModelHook"], tuple[None]]:
        return ModelHook, (None,)
