"""Averages of the dense gradients of the last steps before an update.

Of a weight that FSDP2 shards, a window holds the part of this process.
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor


class WindowState(TypedDict):
    """State between steps; ``count`` is a mean over processes, so it can be fractional."""

    total: Tensor | None
    count: float
    skipped: int


class GradientWindow:
    """Sum of one weight's dense gradients over optimizer steps.

    The gradient of a step is pending until the optimizer has used it: skipped steps and non-finite
    gradients never enter the sum.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count: float = 0
        self.skipped = 0
        self._pending: Tensor | None = None

    def observe(self, grad: Tensor, mask: Tensor, scale: float = 1.0) -> None:
        """Add the gradient of a backward pass, before it is masked.

        With several backward passes per step, ``.grad`` holds the accumulated gradient at active
        positions but only the newest one elsewhere, because it was masked in between.

        Args:
            grad: ``.grad`` right after the backward pass.
            mask: bool, same shape.
            scale: factor by which a gradient scaler multiplied the loss.

        """
        if self._pending is None:
            self._pending = grad / scale if scale != 1 else grad.clone()
        else:
            self._pending.masked_fill_(mask, 0).add_(grad, alpha=1 / scale)

    def pending_is_finite(self) -> Tensor | None:
        """Return whether the sum of the pending gradient is finite: bool [], None without one."""
        if self._pending is None:
            return None
        wide = torch.promote_types(self._pending.dtype, torch.float32)
        return self._pending.sum(dtype=wide).isfinite()

    def commit(self, *, finite: bool) -> None:
        """Add the pending gradient to the sum, after the optimizer's step.

        Args:
            finite: whether it is finite in all processes that hold a part of it.

        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if not finite:
            self.skipped += 1
            return
        self._add(pending.to(torch.promote_types(pending.dtype, torch.float32)))

    def _add(self, gradient: Tensor) -> None:
        self.total = gradient if self.total is None else self.total.add_(gradient)
        self.count += 1

    @property
    def is_pending(self) -> bool:
        """Whether a gradient waits for the optimizer's step."""
        return self._pending is not None

    def discard_pending(self) -> None:
        """Discard a gradient that no optimizer step has used."""
        self._pending = None

    def average(self) -> Tensor | None:
        """Return the mean dense gradient, or None if no step had a finite one."""
        if self.total is None or self.count == 1:
            return self.total
        return self.total / self.count

    def average_over(
        self, weight: Tensor, reduce: Callable[[Tensor], None], processes: int
    ) -> None:
        """Replace sum and count by their means over all processes.

        Every process must call this, even with an empty window.

        Args:
            weight: gives shape, type and device of the zeros that an empty window contributes.
            reduce: sums a tensor over the processes, in place.
            processes: their number.

        """
        total = self.total
        if total is None:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            total = torch.zeros_like(weight, dtype=dtype, requires_grad=False)
        count = torch.tensor(float(self.count), dtype=torch.float64, device=total.device)
        reduce(total)
        reduce(count)
        self.count = float(count) / processes
        self.total = total.div_(processes) if self.count else None

    def clear(self) -> None:
        """Reset after an update."""
        self.total, self.count, self.skipped, self._pending = None, 0, 0, None

    def state_dict(self, saved: Callable[[Tensor], Tensor]) -> WindowState:
        """Return the state between steps as tensors, copied by ``saved``, and numbers."""
        total = None if self.total is None else saved(self.total)
        return {"total": total, "count": self.count, "skipped": self.skipped}

    def load_state_dict(self, state: WindowState, loaded: Callable[[Tensor], Tensor]) -> None:
        """Restore what ``state_dict`` returned; ``loaded`` copies a saved tensor."""
        total = state["total"]
        self.total = None if total is None else loaded(total)
        self.count, self.skipped, self._pending = state["count"], state["skipped"], None


class GradientMomentum(GradientWindow):
    """Exponential moving average of the dense gradients of all steps."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    def _add(self, gradient: Tensor) -> None:
        gradient = gradient.mul(1 - self.decay)
        self.total = gradient if self.total is None else self.total.mul_(self.decay).add_(gradient)
        self.count = 1

    def clear(self) -> None:
        """Keep everything: the average continues through updates."""
