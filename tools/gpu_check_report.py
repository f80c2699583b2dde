"""Part of gpu_check: the Markdown beside the JSON."""

from __future__ import annotations

from typing import Any


def _microseconds(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['microseconds']:.1f}"


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    low, high = row["range_ratio"]
    return f"{row['ratio']:.2f}× ({low:.2f}–{high:.2f})"


def _others(cases: list[dict[str, Any]], mode: str) -> list[str]:
    names: list[str] = []
    for case in cases:
        names += [name for name in case.get(mode, {}) if name not in names]
    names = [name for name in names if name != "condensed" and not name.startswith("kernel")]
    return names


def _table(cases: list[dict[str, Any]], mode: str) -> list[str]:
    others = _others(cases, mode)
    head = ["layer", "sparsity", "batch", "kernel", "condensed µs", "floors µs", *others]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for case in cases:
        times = case.get(mode)
        if not times:
            continue
        floors = case["floors_microseconds"]
        ablated = f", {case['ablated']:.0%} ablated" if case["ablated"] else ""
        cells = [
            f"{case['shape'][0]} → {case['shape'][1]}",
            f"{case['sparsity']} %{ablated}",
            str(case["batch"]),
            case["packed"][0]["kernel"],
            _microseconds(times["condensed"]),
            "/".join(f"{floors[k]:.1f}" for k in ("bytes", "operations", "shared_memory")),
        ]
        cells += [
            f"{_microseconds(times.get(name))}: {_ratio(times.get(name))}" if name in times else ""
            for name in others
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _crossings(cases: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| type | layer | sparsity | batch | stream µs | panel µs |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases:
        times = case.get("graph", {})
        if "kernel stream" in times and "kernel panel" in times:
            stream, panel = (_microseconds(times[f"kernel {name}"]) for name in ("stream", "panel"))
            lines.append(
                f"| {case['kind']} | {case['shape'][0]} → {case['shape'][1]} "
                f"| {case['sparsity']} % | {case['batch']} | {stream} | {panel} |"
            )
    return lines


def markdown(report: dict[str, Any]) -> str:
    """Tables of everything that the report holds, also of one that was cut off."""
    gpu = report["gpu"]
    parts = report["parts"]
    lines = [f"# CUDA kernels on {gpu['name']}", ""]
    lines.append(
        f"Written by `tools/gpu_check.sh`, {report['date']}, commit {report['commit'][:12]}"
        + (" with changes" if report.get("dirty") else "")
        + f". {', '.join(f'{k} {v}' for k, v in gpu.items() if k != 'name')}. {report['nvcc']}."
    )
    lines += ["", "| part | seconds | |", "|---|---|---|"]
    for name, part in parts.items():
        note = part.get("error", "").replace("\n", " ")[-200:] or "ended by itself"
        if "cases" in part and isinstance(part["cases"], int):
            note += f"; {part['cases']} cases, {len(part['failures'])} failures"
        lines.append(f"| {name} | {part.get('seconds', '')} | {note} |")
    bench = parts.get("bench", {})
    cases = [case for case in bench.get("cases", []) if "error" not in case]
    if cases:
        rates = ", ".join(f"{name} {value:.3g}" for name, value in bench["rates"].items())
        lines += [
            "",
            f"torch {bench['torch']}, CUDA {bench['cuda_of_torch']}. Measured ceilings: {rates}.",
            "A cell: median time of a call, then its ratio to condensed, median of "
            f"{bench['rounds']} interleaved rounds and range; above 1 condensed is faster. Floors: "
            "bytes from device memory, multiply-adds of the float32 units, columns of x from "
            "shared memory. Condensed counts everything from x [batch, in] to y [batch, out] with "
            "bias; CSR leaves its result transposed; 2:4 is another mask of half the weights.",
        ]
    titles = {
        "graph": "CUDA graph of calls in a row, buffers in L2",
        "events": "plain launches between two events, gaps included",
        "flushed": "one call between two events, L2 flushed",
    }
    for mode, title in titles.items():
        for kind in ("float32", "bfloat16"):
            chosen = [case for case in cases if case["kind"] == kind and mode in case]
            if chosen:
                lines += ["", f"## {kind}: {title}", "", *_table(chosen, mode)]
    if any("kernel stream" in case.get("graph", {}) for case in cases):
        lines += ["", "## Stream and panel", "", *_crossings(cases)]
    return "\n".join(lines) + "\n"
