"""Blocks of a report on where a model's time goes."""

from __future__ import annotations

from ..report.document import Section, Table, Text
from ..report.text import seconds_text
from ..results.case import Case

_NODES = 15
"""Number of single nodes in the second table."""
_AROUND = {
    "ONNX Runtime overhead": "runtime_seconds",
    "Python call": "call_seconds",
}


def breakdown_blocks(case: Case) -> list[Section | Table | Text]:
    """Report on the nodes of the case's engines; nothing without breakdowns."""
    if not case.breakdowns:
        return []
    headings = [text for one in case.breakdowns for text in (one.engine, "share")]
    rows: dict[str, list[str]] = {}
    for at, one in enumerate(case.breakdowns):
        found = [(kind, seconds, f"{count} × ") for kind, count, seconds in one.by_op_type()]
        found += [(text, getattr(one, name), "") for text, name in _AROUND.items()]
        for kind, seconds, prefix in found:
            row = rows.setdefault(kind, [""] * len(headings))
            row[2 * at] = f"{prefix}{seconds_text(seconds)}"
            row[2 * at + 1] = f"{seconds / one.total_seconds:.1%}"
    last = [[kind, *rows.pop(kind)] for kind in _AROUND]
    table = [[kind, *cells] for kind, cells in rows.items()] + last
    condensed = case.breakdowns[-1]
    longest = [
        [node.name, node.op_type, seconds_text(node.seconds)] for node in condensed.nodes[:_NODES]
    ]
    return [
        Section(f"Where the time goes, {case.title}"),
        Table(["nodes", *headings], table, words=1),
        Text(_sentences(case)),
        Text(f"Longest nodes of {condensed.engine}:"),
        Table(("node", "operator", "time"), longest),
    ]


def _sentences(case: Case) -> str:
    parts = [
        f"{one.engine}: these rows add up to {one.explained:.1%} of the time without the profiler "
        f"(medians of {one.runs} runs with ONNX Runtime's profiler)"
        for one in case.breakdowns
    ]
    if case.limit is not None:
        parts.append(f"if condensed nodes took no time, the speed-up would be {case.limit:.2f}×")
    return "; ".join(parts) + "."
