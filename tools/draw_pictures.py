"""Draw the pictures of README into docs/pictures: pipeline and condensed layout, two themes each.

python tools/draw_pictures.py           writes the files
python tools/draw_pictures.py --check   exits with 1 when they are not what this script draws
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"

# Where the weights of the example layer are: three in each row, row 2 ablated.
COLUMNS = ((0, 3, 6), (1, 2, 7), (), (0, 4, 5), (2, 5, 6))
WIDTH = 8


@dataclass(frozen=True)
class Theme:
    """Colours of a theme; the background stays the page's own."""

    name: str
    ink: str
    faint: str
    box: str
    rows: tuple[str, ...]


THEMES = (
    Theme(
        "light", "#1f2328", "#8c959f", "#f0f4f9", ("#9ecbff", "#a5e3b4", "", "#ffd8a8", "#e2c5ff")
    ),
    Theme(
        "dark", "#e6edf3", "#7d8590", "#1c2430", ("#1f5fa8", "#23713a", "", "#96591a", "#6b3fa0")
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

    def box(self, x: float, y: float, width: float, height: float, fill: str, radius: float = 8):
        """Draw a rectangle with an outline."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" '
            f'fill="{fill or "none"}" stroke="{self._theme.faint}"/>'
        )

    def text(self, x: float, y: float, text: str, size: int, *, bold=False, faint=False):
        """Write a text centred on ``x`` with its baseline at ``y``."""
        colour = self._theme.faint if faint else self._theme.ink
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="middle" '
            f'fill="{colour}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, x: float, y: float, length: float):
        """Draw an arrow to the right."""
        tip = x + length
        self._parts.append(
            f'<path d="M{x} {y}H{tip - 6}M{tip - 10} {y - 7}L{tip} {y}L{tip - 10} {y + 7}" '
            f'fill="none" stroke="{self._theme.ink}" stroke-width="2.5"/>'
        )

    def svg(self) -> str:
        """Return the whole file."""
        return "\n".join([*self._parts, "</svg>", ""])


def pipeline(theme: Theme) -> str:
    """Draw the way from a module to a running model."""
    drawing = Drawing(800, 150, "nn.Module, train, run folder, export, ONNX file, run", theme)
    boxes = (
        ("nn.Module", "PyTorch"),
        ("run folder", "weights, masks"),
        ("model.onnx", "sparse custom ops"),
    )
    width, gap, left = 160, 74, 2
    for number, (name, content) in enumerate(boxes):
        x = left + number * (width + gap)
        drawing.box(x, 30, width, 84, theme.box)
        drawing.text(x + width / 2, 67, name, 22, bold=True)
        drawing.text(x + width / 2, 95, content, 16)
        drawing.arrow(x + width + 6, 72, gap - 12)
        drawing.text(x + width + gap / 2, 58, ("train", "export", "run")[number], 19)
    x = left + len(boxes) * (width + gap)
    for number, use in enumerate(("app", "server", "bench")):
        drawing.text((x + 800) / 2, 45 + 34 * number, use, 20, bold=True)
    drawing.text(
        400, 142, "stock ONNX Runtime, CPU or CUDA; no torch where it runs", 16, faint=True
    )
    return drawing.svg()


def layout(theme: Theme) -> str:
    """Draw a sparse weight beside the three arrays that store it."""
    drawing = Drawing(800, 290, "A weight with three entries a row, and its condensed form", theme)
    cell = 38

    def grid(left: float, heading: str, rows: list[list[str]], colours: list[str]) -> None:
        width = max(map(len, rows)) * cell
        drawing.text(left + width / 2, 24, heading, 21, bold=True)
        for number, (row, colour) in enumerate(zip(rows, colours, strict=True)):
            for column, text in enumerate(row):
                x, y = left + column * cell, 44 + number * cell
                drawing.box(x, y, cell, cell, colour if text else "", radius=0)
                drawing.text(x + cell / 2, y + 25, text, 17)

    letters = iter("abcdefghijkl")
    values = [[next(letters) for _ in columns] for columns in COLUMNS]
    dense = [[""] * WIDTH for _ in COLUMNS]
    for row, columns in enumerate(COLUMNS):
        for column, value in zip(columns, values[row], strict=True):
            dense[row][column] = value
    active = [number for number, columns in enumerate(COLUMNS) if columns]
    colours = [theme.rows[number] for number in active]
    grid(4, "weight", dense, list(theme.rows))
    drawing.arrow(328, 120, 46)
    grid(400, "values", [values[row] for row in active], colours)
    grid(556, "indices", [[str(at) for at in COLUMNS[row]] for row in active], colours)
    grid(712, "rows", [[str(row)] for row in active], colours)
    note = "Every neuron keeps three weights; neuron 2 was ablated and takes no space."
    drawing.text(400, 274, note, 17, faint=True)
    return drawing.svg()


def main() -> int:
    """Write or check the pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    status = 0
    for draw in (pipeline, layout):
        for theme in THEMES:
            path = FOLDER / f"{draw.__name__}-{theme.name}.svg"
            drawn = draw(theme)
            if not check:
                path.write_text(drawn)
            elif not path.exists() or path.read_text() != drawn:
                print(
                    f"{path.name} is not what {Path(__file__).name} draws; run it", file=sys.stderr
                )
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
