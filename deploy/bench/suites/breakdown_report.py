"""The nodes of a model's engines as Markdown."""

from __future__ import annotations

from ..measure.breakdown import Breakdown
from ..report.text import seconds_text
from ..results.case import Case
from ..results.result import Result

_NODES = 15
"""Single nodes that are listed; the sums of all operators are above them."""


def breakdown_lines(result: Result) -> list[str]:
    """Write where the time goes, a section for each case; empty without breakdowns."""
    lines: list[str] = []
    for case in result.cases:
        if case.breakdowns:
            lines += ["", f"## Where the time goes, {case.title}", "", *_case_lines(case)]
    return lines


def _case_lines(case: Case) -> list[str]:
    names = [one.engine for one in case.breakdowns]
    header = " | ".join(f"{name} | share" for name in names)
    lines = [f"| nodes | {header} |", "|---|" + "---:|---:|" * len(names)]
    kinds = dict.fromkeys(row[0] for one in case.breakdowns for row in one.by_op_type())
    for kind in kinds:
        cells = []
        for one in case.breakdowns:
            found = [row for row in one.by_op_type() if row[0] == kind]
            cells += _cells(one, found[0][2], f"{found[0][1]} × ") if found else ["", ""]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    for title, name in (
        ("ONNX Runtime around the nodes", "runtime_seconds"),
        ("the call from Python", "call_seconds"),
    ):
        cells = [cell for one in case.breakdowns for cell in _cells(one, getattr(one, name), "")]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines += ["", *_sentences(case), ""]
    condensed = case.breakdowns[-1]
    lines += [
        f"Longest nodes of {condensed.engine}:",
        "",
        "| node | operator | time |",
        "|---|---|---:|",
    ]
    for node in condensed.nodes[:_NODES]:
        lines.append(f"| {node.name} | {node.op_type} | {seconds_text(node.seconds)} |")
    return lines


def _cells(one: Breakdown, seconds: float, prefix: str) -> list[str]:
    return [f"{prefix}{seconds_text(seconds)}", f"{seconds / one.total_seconds:.1%}"]


def _sentences(case: Case) -> list[str]:
    parts = [
        f"{one.engine}: these rows are {one.explained:.1%} of the time without profiler "
        f"({one.runs} runs with ONNX Runtime's profiler, medians)"
        for one in case.breakdowns
    ]
    if case.limit is not None:
        parts.append(f"were the condensed nodes free, the model would be {case.limit:.2f}× as fast")
    return ["; ".join(parts) + "."]
