"""Hooks around the steps of an optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer

Closure = Callable[[], Any]


class StepHooks:
    """Calls one function before and another one after each step of an optimizer.

    A ``step()`` that calls ``super().step()`` runs torch's hooks twice; only the outer ones count.

    Args:
        optimizer: the optimizer.
        before: called before a step; its argument says whether the step was given a closure.
        evaluate: called with that closure whenever the optimizer calls it; returns its result.
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
        optimizer, *rest = arguments
        closure = rest[0] if rest else keywords.get("closure")
        self._before(closure is not None)
        if closure is None:
            return None
        evaluated = partial(self._evaluate, closure)
        if rest:
            return (optimizer, evaluated, *rest[1:]), keywords
        return arguments, {**keywords, "closure": evaluated}

    def _leave(self, *_: object) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._after()
