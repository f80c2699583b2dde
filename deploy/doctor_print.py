"""The doctor's findings as text for people and as JSON for scripts."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .doctor_plan import LayerPlan, ModelPlan

if TYPE_CHECKING:
    from .doctor import Check

Style = Callable[[str, str], str]
"""Colors a text: from the text and a color to what a terminal is sent."""

_LEAST_DETAIL = 30
"""Least width of the findings; a narrower terminal wraps the lines itself."""


def check_lines(
    checks: Sequence[Check],
    width: int | None = None,
    style: Style = lambda text, color: text,  # noqa: ARG005
) -> Iterator[str]:
    """Yield the lines of a report.

    Words are never broken, so that paths can be copied.

    Args:
        checks: the results.
        width: of the terminal; None breaks no line.
        style: how texts are colored.

    """
    indent = max((len(check.name) for check in checks), default=0) + 6
    for check in checks:
        mark = style("ok  ", "green") if check.ok else style("FAIL", "red")
        head = f"{mark}  {check.name:<{indent - 6}}"
        for line in _wrapped(check.detail, indent, width):
            yield f"{head}  {line}".rstrip()
            head = " " * (indent)
        for number, line in enumerate(_wrapped(check.remedy, indent + 2, width)):
            sign = "  " if number else "→ "
            yield " " * (indent + 2) + style(sign + line, "yellow")


def _wrapped(text: str, indent: int, width: int | None) -> list[str]:
    lines = text.splitlines()
    if width is None:
        return lines
    room = max(width - indent - 2, _LEAST_DETAIL)
    wrapper = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line) or [""]]


def findings(checks: Sequence[Check], plan: ModelPlan | None) -> dict[str, Any]:
    """Return what ``fanin doctor --json`` prints."""
    return {
        "ok": all(check.ok for check in checks),
        "checks": [
            {
                "name": check.name,
                "ok": check.ok,
                "detail": check.detail,
                "remedy": check.remedy,
            }
            for check in checks
        ],
        "plan": None if plan is None else _plan(plan),
    }


def _plan(plan: ModelPlan) -> dict[str, Any]:
    totals = plan.totals()
    return {
        "threads": plan.threads,
        "dispatch_microseconds": {
            "fixed": plan.dispatch.fixed,
            "per_thread": plan.dispatch.per_thread,
            "measured": plan.measured,
        },
        "batches": [
            {
                "batch": batch,
                "one_thread_microseconds": 1e6 * totals[batch][0],
                "planned_microseconds": 1e6 * totals[batch][1],
                "layers": [_layer(layer) for layer in layers],
            }
            for batch, layers in plan.layers.items()
        ],
    }


def _layer(layer: LayerPlan) -> dict[str, Any]:
    plan = layer.plan
    if plan is None:
        return {"node": layer.node, "reason": layer.reason}
    return {
        "node": layer.node,
        "threads": plan.threads,
        "longest_over_mean": plan.imbalance,
        "one_thread_microseconds": plan.microseconds,
        "planned_microseconds": plan.longest + plan.dispatch,
    }
