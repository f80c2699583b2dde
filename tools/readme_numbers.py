"""Write the numbers in README.md and pages of docs from the result files under docs/results.

    python tools/readme_numbers.py            # write them
    python tools/readme_numbers.py --check    # fail if they differ from the files

A block is the text between ``<!-- numbers: NAME -->`` and ``<!-- /numbers -->``; BLOCKS lists the
names. The rest of a page stays unchanged.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_BLOCK = re.compile(
    r"<!-- numbers: (?P<name>[^>]*?) -->\n(?P<body>.*?)<!-- /numbers -->", re.DOTALL
)
_START, _END = "<!-- numbers:", "<!-- /numbers -->"


PAGES = ("README.md", "docs/precision.md", "docs/foreign-models.md")


class NumbersError(Exception):
    """A page has a block that cannot be filled."""


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


LAYERS = ("3072x768", "768x3072")
SPARSITIES = (0.8, 0.9, 0.95)
LAYER_BATCHES = {"int8": (1, 16, 64), "int8-amx": (1, 16, 64, 256)}
"""Columns of the tables of a layer in 8 bits, by folder in docs/results."""

LAYER_ENGINES = {
    "dense-int8-static": "dense int8, static",
    "dense-int8-dynamic": "dense int8, dynamic",
    "condensed": "sparse float32",
    "condensed-bfloat16-compute": "sparse, products of bfloat16",
    "condensed-int8-static": "sparse int8, static",
    "condensed-int8-dynamic": "sparse int8, dynamic",
}
"""Rows of the tables of a layer in 8 bits, by engine."""


def int8_layers(results: Path, folder: str = "int8") -> list[str]:
    """Write speed-ups over dense float32 of ``fanin bench layer --precision int8``."""
    batches = LAYER_BATCHES[folder]
    lines = _heading("layer", "over dense float32", *map(_batch, batches), "error")
    for size in LAYERS:
        cases = _cases_by(results / folder / f"layer-{size}" / "results.json")
        for engine, title in LAYER_ENGINES.items():
            # Dense kernels take the same time at any sparsity.
            shown = (0.9,) if engine.startswith("dense") else SPARSITIES
            cells = [
                _one_behind_other(
                    [_ratio_over_dense(cases.get((batch, each)), engine) for each in shown]
                )
                for batch in batches
            ]
            error = _error(cases.get((batches[-1], 0.9)), engine)
            lines.append(_row(size.replace("x", "\u00a0→\u00a0"), title, *cells, error))
    return lines


def int8_rivals(results: Path, folder: str = "int8") -> list[str]:
    """Write how much faster the sparse layer in 8 bits is than each other runtime's best form."""
    batches = LAYER_BATCHES[folder]
    lines = _heading("layer", "faster than", *map(_batch, batches))
    for size in LAYERS:
        cases = _cases_by(results / folder / f"layer-{size}" / "results.json")
        found = [rival["family"] for case in cases.values() for rival in case["rivals"]]
        for family in dict.fromkeys(found) or [NOT_MEASURED]:
            cells = [
                _one_behind_other(
                    [_ratio_over_rival(cases.get((batch, each)), family) for each in SPARSITIES]
                )
                for batch in batches
            ]
            lines.append(_row(size.replace("x", "\u00a0→\u00a0"), family, *cells))
    return lines


ZOO = {
    "mlp": "MLP 784-3072-768-3072-768-10",
    "minilm": "MiniLM-L6, 32 tokens",
    "mobilenet-v3-large": "MobileNet-V3-Large",
    "resnet-50": "ResNet-50",
    "vit-b-16": "ViT-B/16",
}
"""Rows of the table of networks, by their folder."""


def int8_networks(results: Path, folder: str = "int8") -> list[str]:
    """Write speed-ups over dense float32 of ``fanin bench zoo --precision int8``."""
    engines = [engine for engine in LAYER_ENGINES if "bfloat16" not in engine]
    lines = _heading("network, 90\u00a0%", *(LAYER_ENGINES[engine] for engine in engines))
    for name, title in ZOO.items():
        file = results / folder / "networks" / name / "results.json"
        case = _only_case(json.loads(file.read_text())) if file.is_file() else None
        cells = [_times(_ratio_over_dense(case, engine)) for engine in engines]
        lines.append(_row(title, *cells))
    return lines


WHY = {
    "reordering activations": "dense neighbors",
    "predicted": "too little gain",
    "zero point": "zero point",
    "graph input": "inputs of the graph",
    "dynamically quantized": "ConvInteger",
}
"""Why a layer is left, in short, by words of the reason in the report."""


def foreign(results: Path) -> list[str]:
    """Write what became of each file of tools/foreign_zoo.py."""
    lines = _heading(
        "model", "from", "pruned", "condensed", "left dense", "error", "dense, ms", "speed-up"
    )
    for row in _foreign_rows(results):
        left = Counter[str]()
        for reason, count in row.get("reasons", {}).items():
            left[_short(reason)] += count
        cells = [
            row["name"],
            row.get("origin", "").removeprefix("npm:").replace("==", "\u00a0"),
            str(row.get("pruned", NOT_MEASURED)),
            str(row.get("condensed", 0) + row.get("structured", 0)),
            ", ".join(f"{count}\u00a0{why}" for why, count in left.most_common()) or _why(row),
            _foreign_error(row),
            f"{row['dense_ms']:.3g}" if "dense_ms" in row else NOT_MEASURED,
            f"{row['speedup']:.2f}×" if "speedup" in row else NOT_MEASURED,
        ]
        lines.append(_row(*cells))
    return lines


def foreign_sum(results: Path) -> list[str]:
    """Count the files of tools/foreign_zoo.py by what became of them."""
    rows = [row for row in _foreign_rows(results) if row["status"] != "not here"]
    of = Counter(row["status"] for row in rows)
    ratios = sorted(row["speedup"] for row in rows if "speedup" in row)
    slower = [
        f"{row['name']} ({row['speedup']:.2f}×)"
        for row in rows
        if "speedup" in row and (row["speedup"] < 0.95 or row["interval"][1] < 1)
    ]
    return [
        f"Of {len(rows)} files, {of['converted']} were converted, {of['left']} have no layer for "
        f"which a form of ours pays or exists, and {of['failed']} failed. The median speed-up of "
        f"the converted ones is {median(ratios):.2f}×; they range from {ratios[0]:.2f}× to "
        f"{ratios[-1]:.2f}×.",
        f"Slower than dense by more than noise: {', '.join(slower) or 'none'}.",
    ]


def _foreign_rows(results: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((results / "foreign-zoo" / "models.json").read_text())[
        "rows"
    ]
    return rows


def _why(row: dict[str, Any]) -> str:
    """Say what became of a file without sparse layers, or of one that was not converted."""
    if row["status"] in ("failed", "not here"):
        return str(row["status"])
    return _short(row["reason"]) if row.get("reason") else "none"


def _short(reason: str) -> str:
    found = next((short for words, short in WHY.items() if words in reason), None)
    return found or reason.partition(" reads it")[0].rpartition("::")[2]


def _foreign_error(row: dict[str, Any]) -> str:
    """Write the largest error of an output; in brackets if outputs say little."""
    if row.get("units"):
        return f"{row['units']:.1f} steps"
    if row.get("error") is None:
        return NOT_MEASURED
    text = f"{row['error']:.0e}" if row["error"] else "0"
    return text if row["outputs_vary"] else f"({text})"


BLOCKS: dict[str, Callable[[Path], list[str]]] = {
    "trained": trained,
    "threads": threads,
    "int8-layers": int8_layers,
    "int8-rivals": int8_rivals,
    "int8-networks": int8_networks,
    "int8-amx-layers": partial(int8_layers, folder="int8-amx"),
    "int8-amx-rivals": partial(int8_rivals, folder="int8-amx"),
    "int8-amx-networks": partial(int8_networks, folder="int8-amx"),
    "foreign": foreign,
    "foreign-sum": foreign_sum,
}


def filled(text: str, results: Path) -> str:
    """Return a page's text with the numbers from the results.

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
    status = 0
    for page in (root / name for name in PAGES):
        text = page.read_text()
        try:
            new = filled(text, root / "docs" / "results")
        except NumbersError as error:
            print(f"{page.name}: {error}", file=sys.stderr)
            return 1
        if new != text and check:
            print(f"{page.name} and docs/results differ; run {__file__}", file=sys.stderr)
            status = 1
        elif new != text:
            page.write_text(new)
    return status


def _heading(*cells: str) -> list[str]:
    """Write the first two lines of a table."""
    return [_row(*cells), "|" + "---|" * len(cells)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _batch(size: int) -> str:
    return f"batch {size}"


def _cases_by(file: Path) -> dict[tuple[int, float], dict[str, Any]]:
    """Return the cases by batch and sparsity; none where the file is missing."""
    if not file.is_file():
        return {}
    cases = json.loads(file.read_text())["cases"]
    return {(case["batch"], case["sparsity"]): case for case in cases}


def _ratio_over_dense(case: dict[str, Any] | None, engine: str) -> float | None:
    """Return the median speed-up of whole runs; None where it was not measured."""
    compared = case["comparisons"] if case else []
    ratios = [one["run_ratio"]["median"] for one in compared if one["engine"] == engine]
    return ratios[0] if ratios else None


def _ratio_over_rival(case: dict[str, Any] | None, family: str) -> float | None:
    rivals = case["rivals"] if case else []
    found = [one["comparison"]["run_ratio"] for one in rivals if one["family"] == family]
    return found[0]["median"] if found else None


def _error(case: dict[str, Any] | None, engine: str) -> str:
    """Return the root mean square error of an engine in percent."""
    engines = case["engines"] if case else []
    errors = [one["rms_error"] for one in engines if one["name"] == engine]
    return f"{100 * errors[0]:.1f}\u00a0%" if errors and errors[0] is not None else NOT_MEASURED


def _one_behind_other(ratios: list[float | None]) -> str:
    """Write ratios; a single dash if none was measured."""
    if not any(ratios):
        return NOT_MEASURED
    return " / ".join(_times(ratio) for ratio in ratios)


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
