"""Where a model's time goes, as parts of its report."""

from __future__ import annotations

from ..measure.breakdown import Breakdown
from ..report.document import Section, Table, Text
from ..report.text import seconds_text
from ..results.case import Case

_NODES = 15
"""Single nodes that are listed; the sums of all operators are above them."""


def breakdown_blocks(case: Case) -> list[Section | Table | Text]:
    """Report on the nodes of the case's engines; nothing without breakdowns."""
    if not case.breakdowns:
        return []
    headings = [text for one in case.breakdowns for text in (one.engine, "share")]
    rows = []
    for kind in dict.fromkeys(row[0] for one in case.breakdowns for row in one.by_op_type()):
        cells = []
        for one in case.breakdowns:
            found = [row for row in one.by_op_type() if row[0] == kind]
            cells += _cells(one, found[0][2], f"{found[0][1]} × ") if found else ["", ""]
        rows.append([kind, *cells])
    for title, name in (
        ("ONNX Runtime around the nodes", "runtime_seconds"),
        ("the call from Python", "call_seconds"),
    ):
        cells = [cell for one in case.breakdowns for cell in _cells(one, getattr(one, name), "")]
        rows.append([title, *cells])
    condensed = case.breakdowns[-1]
    longest = [
        [node.name, node.op_type, seconds_text(node.seconds)] for node in condensed.nodes[:_NODES]
    ]
    return [
        Section(f"Where the time goes, {case.title}"),
        Table(["nodes", *headings], rows, words=1),
        Text(_sentences(case)),
        Text(f"Longest nodes of {condensed.engine}:"),
        Table(("node", "operator", "time"), longest),
    ]


def _cells(one: Breakdown, seconds: float, prefix: str) -> list[str]:
    return [f"{prefix}{seconds_text(seconds)}", f"{seconds / one.total_seconds:.1%}"]


def _sentences(case: Case) -> str:
    parts = [
        f"{one.engine}: these rows are {one.explained:.1%} of the time without profiler "
        f"({one.runs} runs with ONNX Runtime's profiler, medians)"
        for one in case.breakdowns
    ]
    if case.limit is not None:
        parts.append(f"were the condensed nodes free, the model would be {case.limit:.2f}× as fast")
    return "; ".join(parts) + "."
