"""Averaging the dense gradients of the last steps before an update."""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor


class WindowState(TypedDict):
    """A window between steps; ``count`` is a mean, and may be no whole number, over processes."""

    total: Tensor | None
    count: float
    skipped: int


class GradientWindow:
    """Dense gradient of one weight, summed over optimizer steps.

    A step's gradient is ``pending`` until the optimizer has used it: steps that are skipped or
    whose gradient is not finite never enter the sum.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count: float = 0
        self.skipped = 0
        self._pending: Tensor | None = None

    def observe(self, grad: Tensor, mask: Tensor, scale: float = 1.0) -> None:
        """Take in ``.grad`` right after a backward pass and before it is masked.

        With several backward passes a step, ``.grad`` holds the sum so far at active positions
        but only the newest gradient elsewhere, because it was masked in between. ``scale``: what
        a gradient scaler has multiplied the loss by.
        """
        if self._pending is None:
            self._pending = grad / scale if scale != 1 else grad.clone()
        else:
            self._pending.masked_fill_(mask, 0).add_(grad, alpha=1 / scale)

    def commit(self) -> None:
        """Add the pending gradient: the optimizer has made the step."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if not torch.isfinite(pending.sum()):
            self.skipped += 1
            return
        self._add(pending.to(torch.promote_types(pending.dtype, torch.float32)))

    def _add(self, gradient: Tensor) -> None:
        self.total = gradient if self.total is None else self.total.add_(gradient)
        self.count += 1

    def discard_pending(self) -> None:
        """Forget a gradient that no optimizer step has used."""
        self._pending = None

    def average(self) -> Tensor | None:
        """Mean dense gradient, or None when no step had a finite one."""
        if self.total is None or self.count == 1:
            return self.total
        return self.total / self.count

    def average_over(
        self, weight: Tensor, reduce: Callable[[Tensor], None], processes: int
    ) -> None:
        """Replace sum and count by their means over all processes.

        ``reduce`` sums a tensor over them, in place. Every process must call this, one with
        nothing in its window too: its sum is zeros of the shape and device of ``weight``.
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
        """Forget everything, after an update."""
        self.total, self.count, self.skipped, self._pending = None, 0, 0, None

    def state_dict(self) -> WindowState:
        """State between steps, as tensors and numbers."""
        total = None if self.total is None else self.total.clone()
        return {"total": total, "count": self.count, "skipped": self.skipped}

    def load_state_dict(self, state: WindowState, device: torch.device) -> None:
        """Restore what ``state_dict`` returned, on ``device``."""
        total = state["total"]
        self.total = None if total is None else total.to(device, copy=True)
        self.count, self.skipped, self._pending = state["count"], state["skipped"], None


class GradientMomentum(GradientWindow):
    """Average of the dense gradients of all steps, each weighing ``decay`` times the next."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    def _add(self, gradient: Tensor) -> None:
        gradient = gradient.mul(1 - self.decay)
        self.total = gradient if self.total is None else self.total.mul_(self.decay).add_(gradient)
        self.count = 1

    def clear(self) -> None:
        """Keep everything: the average goes on through updates."""
