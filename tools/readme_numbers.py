"""Write the numbers in README.md from the result files under docs/results.

    python tools/readme_numbers.py            # write them
    python tools/readme_numbers.py --check    # fail if they differ from the files

A block is the text between ``<!-- numbers: NAME -->`` and ``<!-- /numbers -->``; BLOCKS lists the
names. The rest of the file stays unchanged.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_BLOCK = re.compile(
    r"<!-- numbers: (?P<name>[^>]*?) -->\n(?P<body>.*?)<!-- /numbers -->", re.DOTALL
)
_START, _END = "<!-- numbers:", "<!-- /numbers -->"


class NumbersError(Exception):
    """README has a block that cannot be filled."""


NETWORKS = {
    "mlp": "MLP, 90\u00a0%",
    "resnet18": "ResNet-18, 90\u00a0%",
    "minilm-50": "MiniLM, 50\u00a0%",
    "minilm-90": "MiniLM, 90\u00a0%",
}
"""Rows of README's table, by folder in docs/results/trained."""

NOT_MEASURED = "–"


def trained(results: Path) -> list[str]:
    """Write accuracy and speed-ups of the trained networks; a dash stands for a missing result."""
    lines = [
        "| network, sparsity | accuracy, dense | sparse | speed-up, 1 thread | all CPUs |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, title in NETWORKS.items():
        folder = results / "trained" / name
        speedups = {
            int(file.parent.name.removeprefix("threads-")): _run_ratio(
                _only_case(json.loads(file.read_text()))
            )
            for file in folder.glob("threads-*/results.json")
        }
        cells = [
            title,
            *_accuracies(folder / "accuracy.json"),
            _times(speedups.pop(1, None)),
            " ".join(f"{_times(ratio)} ({threads})" for threads, ratio in sorted(speedups.items()))
            or NOT_MEASURED,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


BATCHES = (1, 16, 256)
"""Rows of README's table over threads."""

PREDICTED = 16
"""The number of threads for which README has a prediction."""


def threads(results: Path) -> list[str]:
    """Write what threads give a layer: measured by ``fanin bench scaling``, and predicted."""
    result = json.loads((results / "scaling" / "threads" / "results.json").read_text())
    cases: dict[int, dict[int, dict[str, Any]]] = {}
    for case in result["cases"]:
        cases.setdefault(case["batch"], {})[case["facts"]["threads"]] = case
    most = max(max(own) for own in cases.values())
    lines = [
        f"| batch | over dense, 1 thread | {most} threads | {most} threads over 1 "
        f"| {PREDICTED} over 1, predicted |",
        "|---:|---:|---:|---:|---:|",
    ]
    for batch in (batch for batch in BATCHES if batch in cases):
        own = cases[batch]
        one, all_threads = (_condensed_median(own[count]) for count in (1, most))
        plan = next(
            plan
            for plan in result["facts"]["planned"]
            if plan["threads"] == PREDICTED and plan["what"].endswith(f"batch {batch}")
        )
        cells = [
            str(batch),
            _times(_run_ratio(own[1])),
            _times(_run_ratio(own[most])),
            f"{one / all_threads:.2f}\u00d7",
            _times(plan["one_thread"] / plan["planned"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


BLOCKS: dict[str, Callable[[Path], list[str]]] = {"trained": trained, "threads": threads}


def filled(text: str, results: Path) -> str:
    """Return README's text with the numbers from the results.

    Raises NumbersError for a block that is unknown or not closed.
    """
    if text.count(_START) != text.count(_END):
        raise NumbersError(f"{text.count(_START)} blocks are opened and {text.count(_END)} closed")

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise NumbersError(f"unknown block {name!r}; known are {', '.join(BLOCKS)}")
        return "\n".join([f"<!-- numbers: {name} -->", *BLOCKS[name](results), _END])

    return _BLOCK.sub(block, text)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if they differ")
    check = parser.parse_args(arguments).check
    readme = root / "README.md"
    text = readme.read_text()
    try:
        new = filled(text, root / "docs" / "results")
    except NumbersError as error:
        print(f"{readme.name}: {error}", file=sys.stderr)
        return 1
    if new == text:
        return 0
    if check:
        print(f"{readme.name} and docs/results differ; run {__file__}", file=sys.stderr)
        return 1
    readme.write_text(new)
    return 0


def _accuracies(file: Path) -> list[str]:
    """Return the cells of the dense and the sparse model."""
    if not file.is_file():
        return [NOT_MEASURED, NOT_MEASURED]
    data = json.loads(file.read_text())
    if data["measure"] == "test accuracy":
        return [f"{100 * data[kind]:.1f}\u00a0%" for kind in ("dense", "sparse")]
    return [f"{data[kind]:.2f}" for kind in ("dense", "sparse")]


def _only_case(result: dict[str, Any]) -> dict[str, Any]:
    (case,) = result["cases"]
    return case  # type: ignore[no-any-return]


def _condensed_median(case: dict[str, Any]) -> float:
    """Return the median of condensed runs, in seconds."""
    run = next(one["run"] for one in case["engines"] if one["name"] == "condensed")
    return float(run["median"])


def _run_ratio(case: dict[str, Any]) -> float:
    """Return the median speed-up of condensed over dense."""
    comparison = next(one for one in case["comparisons"] if one["engine"] == "condensed")
    return float(comparison["run_ratio"]["median"])


def _times(ratio: float | None) -> str:
    return NOT_MEASURED if ratio is None else f"{ratio:.1f}×"


if __name__ == "__main__":
    sys.exit(main())
