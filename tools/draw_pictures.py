"""Draw README's pictures into docs/pictures, each for light and dark pages.

    python tools/draw_pictures.py           # write the files
    python tools/draw_pictures.py --check   # fail if the files are out of date

The pictures show the pipeline, the condensed format, and the speed-ups of a layer from its saved
result. The font size is at least 20 pixels at a width of 640, legible on a phone as well.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from fanin._base.figure_style import spread_out

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "pictures"
LAYER = DOCS / "results" / "layer-3072x768" / "results.json"

# Where the weights of the example layer are: three in each row, row 2 ablated.
COLUMNS = ((0, 3, 6), (1, 2, 7), (), (0, 4, 5), (2, 5, 6))
WIDTH = 8


@dataclass(frozen=True)
class Theme:
    """Colours of a theme; the background is transparent."""

    name: str
    ink: str
    faint: str
    grid: str
    box: str
    rows: tuple[str, ...]
    lines: tuple[str, ...]


THEMES = (
    Theme(
        name="light",
        ink="#1f2328",
        faint="#59636e",
        grid="#d1d9e0",
        box="#f0f4f9",
        rows=("#9ecbff", "#a5e3b4", "", "#ffd8a8", "#e2c5ff"),
        lines=("#54aeff", "#0969da", "#0550ae", "#0a3069"),
    ),
    Theme(
        name="dark",
        ink="#e6edf3",
        faint="#9198a1",
        grid="#3d444d",
        box="#1c2430",
        rows=("#1f5fa8", "#23713a", "", "#96591a", "#6b3fa0"),
        lines=("#1f6feb", "#58a6ff", "#79c0ff", "#cae8ff"),
    ),
)


class Drawing:
    """Shapes and texts, collected as SVG elements; coordinates and sizes are pixels."""

    def __init__(self, width: int, height: int, title: str, theme: Theme):
        self._theme = theme
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" '
            'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">',
            f"<title>{escape(title)}</title>",
        ]

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, radius: float = 8
    ) -> None:
        """Draw a rectangle with an outline."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" '
            f'fill="{fill or "none"}" stroke="{self._theme.faint}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        *,
        bold: bool = False,
        faint: bool = False,
        anchor: str = "middle",
    ) -> None:
        """Write a text with its baseline at ``y`` and its ``anchor`` at ``x``."""
        color = self._theme.faint if faint else self._theme.ink
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}>{escape(text)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float) -> None:
        """Draw a line through the points."""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._parts.append(
            f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'
        )

    def dots(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """Draw a dot at each point."""
        for x, y in points:
            self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}"/>')

    def arrow(self, x: float, y: float, length: float) -> None:
        """Draw an arrow to the right."""
        tip = x + length
        self._parts.append(
            f'<path d="M{x} {y}H{tip - 6}M{tip - 10} {y - 7}L{tip} {y}L{tip - 10} {y + 7}" '
            f'fill="none" stroke="{self._theme.ink}" stroke-width="2.5"/>'
        )

    def arrow_down(self, x: float, y: float, length: float) -> None:
        """Draw an arrow downwards."""
        tip = y + length
        self._parts.append(
            f'<path d="M{x} {y}V{tip - 6}M{x - 7} {tip - 10}L{x} {tip}L{x + 7} {tip - 10}" '
            f'fill="none" stroke="{self._theme.ink}" stroke-width="2.5"/>'
        )

    def svg(self) -> str:
        """Return the whole file."""
        return "\n".join([*self._parts, "</svg>", ""])


def pipeline(theme: Theme) -> str:
    """Draw the pipeline from a module to a running model."""
    drawing = Drawing(640, 196, "nn.Module, train, run folder, export, ONNX file, run", theme)
    steps = (
        ("train", "nn.Module", "PyTorch"),
        ("export", "run folder", "weights, masks"),
        ("run", "model.onnx", "sparse ops"),
    )
    width, gap, top = 164, 73, 2
    for number, (step, name, content) in enumerate(steps):
        x = 1 + number * (width + gap)
        drawing.box(x, top, width, 92, theme.box)
        drawing.text(x + width / 2, top + 40, name, 22, bold=True)
        drawing.text(x + width / 2, top + 70, content, 20)
        if number < len(steps) - 1:
            drawing.arrow(x + width + 5, top + 50, gap - 10)
            drawing.text(x + width + gap / 2, top + 34, step, 20)
    x = 1 + 2 * (width + gap) + width / 2
    drawing.arrow_down(x, top + 98, 48)
    drawing.text(x - 34, top + 128, "run", 20)
    drawing.text(638, 180, "app, server, benchmark: stock ONNX Runtime", 22, anchor="end")
    return drawing.svg()


def layout(theme: Theme) -> str:
    """Draw a sparse weight and the three arrays that store it."""
    drawing = Drawing(640, 290, "A weight with three entries a row, and its condensed form", theme)
    cell = 33

    def grid(left: float, heading: str, rows: list[list[str]], colors: list[str]) -> None:
        width = max(map(len, rows)) * cell
        drawing.text(left + width / 2, 24, heading, 22, bold=True)
        for number, (row, color) in enumerate(zip(rows, colors, strict=True)):
            for column, text in enumerate(row):
                x, y = left + column * cell, 40 + number * cell
                drawing.box(x, y, cell, cell, color if text else "", radius=0)
                drawing.text(x + cell / 2, y + 24, text, 20)

    letters = iter("abcdefghijkl")
    values = [[next(letters) for _ in columns] for columns in COLUMNS]
    dense = [[""] * WIDTH for _ in COLUMNS]
    for row, columns in enumerate(COLUMNS):
        for column, value in zip(columns, values[row], strict=True):
            dense[row][column] = value
    active = [number for number, columns in enumerate(COLUMNS) if columns]
    colors = [theme.rows[number] for number in active]
    grid(2, "weight", dense, list(theme.rows))
    drawing.arrow(274, 122, 40)
    grid(324, "values", [values[row] for row in active], colors)
    grid(447, "indices", [[str(at) for at in COLUMNS[row]] for row in active], colors)
    grid(582, "rows", [[str(row)] for row in active], colors)
    drawing.text(320, 246, "Every neuron keeps three weights.", 21, faint=True)
    drawing.text(320, 276, "Neuron 2 was ablated and takes no space.", 21, faint=True)
    return drawing.svg()


def speedup(theme: Theme) -> str:
    """Draw the speed-up of a layer's whole session.run by batch, a line for each sparsity."""
    lines: dict[float, dict[int, float]] = {}
    for case in json.loads(LAYER.read_text())["cases"]:
        (ratio,) = (c["run_ratio"] for c in case["comparisons"] if c["engine"] == "condensed")
        lines.setdefault(case["sparsity"], {})[case["batch"]] = ratio["median"]
    title = "Speed-up over dense, by batch size"
    drawing = Drawing(640, 440, title, theme)
    left, right, top, bottom = 62, 548, 100, 396
    batches, ticks, most = sorted(next(iter(lines.values()))), (1, 2, 5, 10, 20), 40

    def x_of(batch: int) -> float:
        return left + 16 + (right - left - 16) * math.log(batch) / math.log(batches[-1])

    def y_of(ratio: float) -> float:
        return bottom - (bottom - top) * math.log(ratio) / math.log(most)

    drawing.text(2, 26, title, 24, bold=True, anchor="start")
    drawing.text(
        2, 54, "session.run of a layer, 3072 → 768, float32", 21, faint=True, anchor="start"
    )
    for tick in ticks:
        drawing.line([(left, y_of(tick)), (right, y_of(tick))], theme.grid, 1 + (tick == 1))
        drawing.text(left - 8, y_of(tick) + 7, f"{tick}×", 21, anchor="end")
    drawing.text(right + 14, y_of(1) + 7, "dense", 21, faint=True, anchor="start")
    for batch in batches:
        if batch != 197:  # its label would overlap that of 256
            drawing.text(x_of(batch), bottom + 30, str(batch), 21)
    drawing.text(0, bottom + 30, "batch", 20, faint=True, anchor="start")
    ordered = sorted(lines.items())
    ends = spread_out([y_of(ratios[batches[-1]]) for _, ratios in ordered], 25, top, bottom)
    for color, (sparsity, ratios), end in zip(theme.lines, ordered, ends, strict=True):
        points = [(x_of(batch), y_of(ratio)) for batch, ratio in sorted(ratios.items())]
        drawing.line(points, color, 3)
        drawing.dots(points, color)
        drawing.text(right + 14, end + 7, f"{100 * sparsity:g} %", 22, bold=True, anchor="start")
        x, y = points[0]
        drawing.text(x + 4, y - 12, f"{ratios[batches[0]]:.0f}×", 22, bold=True, anchor="start")
    return drawing.svg()


def main() -> int:
    """Write or check the pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    status = 0
    for draw in (pipeline, layout, speedup):
        for theme in THEMES:
            path = FOLDER / f"{draw.__name__}-{theme.name}.svg"
            drawn = draw(theme)
            if not check:
                path.write_text(drawn)
            elif not path.exists() or path.read_text() != drawn:
                print(f"{path.name} is out of date; run {Path(__file__).name}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
