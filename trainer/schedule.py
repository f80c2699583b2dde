"""When the topology changes, and how much of it.

SRigL (arXiv 2305.02299, section 3) takes the schedule of RigL (arXiv 1911.11134, section 3).
"""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScheduleOptions:
    """When a ``Sparsifier`` updates the topology; all steps are optimizer steps.

    Attributes:
        update_every: ΔT, steps between updates.
        end_fraction: fraction of the training, in (0, 1], after which the topology is fixed.
        alpha: α, drop fraction at the start, in [0, 1]; it decays to 0 by a cosine.
        gradient_window: number of steps before an update whose dense gradients are averaged, from 1
            to ``update_every``.

    Raises:
        TypeError: a value is not a number.
        ValueError: a value is out of range.

    """

    update_every: int = 100
    end_fraction: float = 0.75
    alpha: float = 0.3
    gradient_window: int = 1

    def __post_init__(self) -> None:
        _check_whole(self, "update_every", "gradient_window")
        if self.update_every < 1:
            raise ValueError(f"update_every must be at least 1, got {self.update_every}")
        for name in ("end_fraction", "alpha"):
            if not isinstance(getattr(self, name), int | float):
                raise TypeError(f"{name} must be a number, got {getattr(self, name)!r}")
        if not 0 < self.end_fraction <= 1:
            raise ValueError(f"end_fraction must be in (0, 1], got {self.end_fraction}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")
        if not 1 <= self.gradient_window <= self.update_every:
            raise ValueError(
                f"gradient_window must be between 1 and update_every ({self.update_every}), "
                f"got {self.gradient_window}"
            )


@dataclass(frozen=True)
class UpdateSchedule(ScheduleOptions):
    """The update steps and drop fractions of a training of ``total_steps``, counted from 1.

    Raises:
        TypeError: a count is not an integer.
        ValueError: a value is out of range, or no step would be an update.

    """

    total_steps: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole(self, "total_steps")
        if self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {self.total_steps}")
        if self.update_every >= self.end_step:
            raise ValueError(
                f"no topology update would ever happen: updates stop before step "
                f"{self.end_step} ({self.end_fraction:g} of {self.total_steps} steps), and the "
                f"first is due at step {self.update_every}. Lower update_every or train longer."
            )

    @property
    def end_step(self) -> int:
        """T_end, the first step that can no longer be an update."""
        return int(self.end_fraction * self.total_steps)

    def is_update_step(self, step: int) -> bool:
        """Return whether the topology changes after optimizer step ``step``."""
        return 0 < step < self.end_step and step % self.update_every == 0

    def next_update(self, step: int) -> int | None:
        """Return the first update step after ``step``, or None."""
        following = (step // self.update_every + 1) * self.update_every
        return following if self.is_update_step(following) else None

    def in_gradient_window(self, step: int) -> bool:
        """Return whether the dense gradient of optimizer step ``step`` enters the next update."""
        update = math.ceil(step / self.update_every) * self.update_every
        return update - step < self.gradient_window and self.is_update_step(update)

    def drop_fraction(self, step: int) -> float:
        """Return α/2 · (1 + cos(π · step/T_end)), and 0 from T_end on."""
        if step >= self.end_step:
            return 0.0
        return self.alpha / 2 * (1 + math.cos(math.pi * step / self.end_step))


def _check_whole(options: ScheduleOptions, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(options, name), int):
            raise TypeError(f"{name} must be a whole number, got {getattr(options, name)!r}")
