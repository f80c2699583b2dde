"""Settings of a measurement, and the measurement of one engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...cpus import MAX_THREADS
from ..engines.child.conditions import CONDITIONS

Progress = Callable[[str, float], None]
"""Called with the title of what is measured next and the share done."""


@dataclass(frozen=True)
class Timing:
    """How long and how often to measure. Times are in seconds.

    A *turn* is one engine's part of a round: ``lead_in`` of untimed runs, which bring its weights
    back into the caches, then as many timed runs as take ``turn`` together, at least
    ``min_repeats``. The figure of the turn is the median of its runs. An engine whose run takes
    longer than ``slow`` has one run per turn and no lead-in.

    Each of the ``conditions`` (see CONDITIONS) adds as many rounds, in which every engine runs once
    under the condition. Rounds end after ``rounds``, or when ``budget`` seconds of warm-up and
    rounds are spent, of which each condition has a fifth; there are always ``min_rounds``.

    *Warm-up* runs an engine in windows of half a turn, and ends when the medians of the last
    ``steady_windows`` windows lie within ``steady_tolerance`` of each other, or after
    ``max_warmup``; the report says which.
    """

    threads: int = 1
    rounds: int = 31
    min_rounds: int = 5
    budget: float | None = None
    conditions: tuple[str, ...] = ()
    turn: float = 0.02
    min_repeats: int = 3
    slow: float = 0.2
    lead_in: float = 0.002
    max_warmup: float = 2.0
    steady_windows: int = 3
    steady_tolerance: float = 0.05

    def __post_init__(self) -> None:
        for name in ("threads", "rounds", "min_rounds", "min_repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.threads > MAX_THREADS:
            raise ValueError(f"threads is {self.threads}; it must be at most {MAX_THREADS}")
        for name in ("turn", "max_warmup", "steady_tolerance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget is {self.budget}; it must be above 0")
        if not set(self.conditions) <= set(CONDITIONS) or len(set(self.conditions)) < len(
            self.conditions
        ):
            raise ValueError(
                f"conditions are {self.conditions}; there are {', '.join(CONDITIONS)}, each once"
            )
        if self.steady_windows < 2:
            raise ValueError(f"steady_windows is {self.steady_windows}; it must be at least 2")


@dataclass(frozen=True)
class Warmup:
    """The warm-up of one engine: its length, its runs, and whether it ended steady."""

    seconds: float
    runs: int
    steady: bool


@dataclass
class EngineRecord:
    """What is known of one engine in one case; ``excluded`` is why its times do not count.

    Attributes:
        name, version, form, threads, precision, call_seconds: see Engine.
        load_seconds: time of ``prepare``.
        first_run_seconds: time of the first run, before the warm-up.
        warmup: None where it never began.
        repeats: runs in each turn.
        error_before, error_after: largest error relative to the largest output, before the timing
            and after it.
        rms_error: root mean square of the errors relative to that of the outputs, on inputs never
            seen before; None where it was not measured.
        excluded: the reason, or None.

    """

    name: str
    version: str = ""
    form: str = ""
    threads: int = 0
    load_seconds: float | None = None
    first_run_seconds: float | None = None
    warmup: Warmup | None = None
    repeats: int | None = None
    call_seconds: float | None = None
    precision: str = "float32"
    error_before: float | None = None
    error_after: float | None = None
    rms_error: float | None = None
    excluded: str | None = None


@dataclass
class Measurement(EngineRecord):
    """Times of one engine, in seconds.

    Attributes:
        rounds_seconds: median run of each round.
        runs_seconds: every timed run of every round, for percentiles.
        conditions: the run of each round under a condition, by its name.

    """

    rounds_seconds: list[float] = field(default_factory=list)
    runs_seconds: list[float] = field(default_factory=list)
    conditions: dict[str, list[float]] = field(default_factory=dict)
