"""Hooks around the steps of an optimizer."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from torch import nn
from torch.optim import Optimizer

Closure = Callable[[], Any]


class StepHooks:
    """Calls one function before and another one after each step of an optimizer.

    A ``step()`` that calls ``super().step()`` runs torch's hooks twice; only the outer ones count.

    Args:
        optimizer: the optimizer.
        before: called before a step; its argument says whether the step was given a closure.
        evaluate: called with that closure whenever the optimizer calls it; returns its result. A
            closure is anything that can be called, whatever the step's argument is named.
        after: called after a step.

    """

    def __init__(
        self,
        optimizer: Optimizer,
        before: Callable[[bool], None],
        evaluate: Callable[[Closure], Any],
        after: Callable[[], None],
    ) -> None:
        self._before, self._evaluate, self._after, self._depth = before, evaluate, after, 0
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

    def _enter(
        self, _: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._depth += 1
        if self._depth > 1:
            return None
        found = [value for value in (*arguments, *keywords.values()) if _is_closure(value)]
        self._before(bool(found))
        if not found:
            return None
        positional = tuple(self._evaluated(value) for value in arguments)
        return positional, {name: self._evaluated(value) for name, value in keywords.items()}

    def _evaluated(self, value: Any) -> Any:
        """Return an argument of a step, a closure so that ``evaluate`` calls it."""
        if not _is_closure(value):
            return value

        @wraps(value)
        def closure(*arguments: Any, **keywords: Any) -> Any:
            try:
                return self._evaluate(partial(value, *arguments, **keywords))
            except BaseException:
                self.expect_new_step()
                raise

        return closure

    def _leave(self, *_: object) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._after()


def _is_closure(value: object) -> bool:
    return callable(value) and not isinstance(value, nn.Module | Optimizer)
