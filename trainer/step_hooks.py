"""Hooks around the steps of an optimizer."""

from collections.abc import Callable

from torch.optim import Optimizer


class StepHooks:
    """Calls one function before and another one after each step of an optimizer.

    A ``step()`` that calls ``super().step()`` runs torch's hooks twice; only the outer ones count.
    """

    def __init__(
        self, optimizer: Optimizer, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._before, self._after, self._depth = before, after, 0
        self._handles = (
            optimizer.register_step_pre_hook(self._enter),
            optimizer.register_step_post_hook(self._leave),
        )

    @property
    def within_step(self) -> bool:
        """Whether a step is in progress."""
        return self._depth > 0

    def expect_new_step(self) -> None:
        """Forget a step that ended by an error, after which torch runs no hook."""
        self._depth = 0

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, *_: object) -> None:
        self._depth += 1
        if self._depth == 1:
            self._before()

    def _leave(self, *_: object) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._after()
