"""Write the numbers in README.md from the result files under docs/results.

    python tools/readme_numbers.py            # writes them
    python tools/readme_numbers.py --check    # says whether they are those of the files

A block is what stands between ``<!-- numbers: NAME -->`` and ``<!-- /numbers -->``; BLOCKS has the
names. Everything else in the file is left as it is.
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
    """The README or a result file is not as it should be."""


def layer(results: Path) -> list[str]:
    """Write op speed-ups of the paper's layer, a row per batch."""
    name = "layer-3072x768"
    cases = [
        (case["batch"], case["sparsity"], _op_ratio(case, "condensed"))
        for case in _read(results / name)["cases"]
    ]
    sparsities = sorted({sparsity for _, sparsity, _ in cases})
    ratios = {(batch, sparsity): ratio for batch, sparsity, ratio in cases}
    lines = [
        "| batch | " + " | ".join(f"{100 * one:g} % sparse" for one in sparsities) + " |",
        "|---:|" + "---:|" * len(sparsities),
    ]
    for batch in sorted({batch for batch, _, _ in cases}):
        cells = [_times(ratios.get((batch, sparsity))) for sparsity in sparsities]
        lines.append(f"| {batch} | " + " | ".join(cells) + " |")
    return lines


def networks(results: Path) -> list[str]:
    """Write speed-ups of whole networks over dense ONNX Runtime, from ``fanin bench zoo``."""
    folder = results / "networks"
    engines = {"condensed": "fanin", "deepsparse": "DeepSparse", "openvino": "OpenVINO"}
    lines = [
        "| network | " + " | ".join(engines.values()) + " |",
        "|---|" + "---:|" * len(engines),
    ]
    for file in _read(folder)["parts"].values():
        data = _read(folder / Path(file).parent)
        (case,) = data["cases"]
        cells = [_times(_run_ratio(case, engine)) for engine in engines]
        lines.append(f"| {data['title']} | " + " | ".join(cells) + " |")
    return lines


BLOCKS: dict[str, Callable[[Path], list[str]]] = {"layer": layer, "networks": networks}


def filled(text: str, results: Path) -> str:
    """Return the README's text with the numbers of the results.

    Raises NumbersError for a block that is unknown or does not end, and for missing results.
    """
    if text.count(_START) != text.count(_END):
        raise NumbersError(f"{text.count(_START)} blocks begin and {text.count(_END)} end")

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise NumbersError(f"no numbers are called {name!r}; there are {', '.join(BLOCKS)}")
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
        print(f"{readme.name}: other numbers than docs/results; run {__file__}", file=sys.stderr)
        return 1
    readme.write_text(new)
    return 0


def _read(folder: Path) -> dict[str, Any]:
    file = folder / "results.json"
    if not file.is_file():
        raise NumbersError(f"there is no {file.name} in {folder.name}; measure it first")
    return json.loads(file.read_text())


def _comparison(case: dict[str, Any], engine: str) -> dict[str, Any]:
    return next((one for one in case["comparisons"] if one["engine"] == engine), {})


def _op_ratio(case: dict[str, Any], engine: str) -> float | None:
    spread = _comparison(case, engine).get("op_ratio")
    return spread["median"] if spread else None


def _run_ratio(case: dict[str, Any], engine: str) -> float | None:
    spread = _comparison(case, engine).get("run_ratio")
    return spread["median"] if spread else None


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.1f}×"


if __name__ == "__main__":
    sys.exit(main())
