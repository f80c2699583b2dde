"""An analysis: a table and a figure, written as JSON, Markdown and SVG."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._base.atomic import output_folder, write_file
from ..._base.figure_style import WIDTHS, Width, figure_style, name_lines, picture, to_svg
from ..._base.tables import Column, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = 0.2
"""Height of a layer, or of a line of the key, in a figure."""


@dataclass(frozen=True)
class Analysis:
    """One table with its figure.

    Attributes:
        name: name of the files.
        title: heading.
        rows: values by column: numbers, strings, lists or None.
        note: what was counted, and how.
        draw: draws the figure into axes; None: no figure. Lines are named by their labels.
        places: number of layers or the like that the figure shows below each other.

    """

    name: str
    title: str
    rows: Sequence[Mapping[str, object]]
    note: str = ""
    draw: Callable[["Axes"], None] | None = None
    places: int = 0

    @property
    def columns(self) -> list[str]:
        """Columns in the order of their first appearance."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def to_markdown(self) -> str:
        """Return title, table and note."""
        head = self.columns
        shown = [] if self.draw is None else [picture(self.name, self._described()), ""]
        lines = [f"# {self.title}", "", *shown, _line(head), _line(["---"] * len(head))]
        lines += [_line([_cell(row.get(column)) for column in head]) for row in self.rows]
        return "\n".join([*lines, "", self.note]).rstrip() + "\n"

    def sheet(self) -> Sheet:
        """Return the table as commands print it; on narrow terminals the last columns go first."""
        head = self.columns
        numbers = {name for name in head if all(_is_short(row.get(name)) for row in self.rows)}
        columns = tuple(
            Column(name, right=name in numbers, words=name not in numbers, drop=-at if at else None)
            for at, name in enumerate(head)
        )
        rows = tuple(tuple(_cell(row.get(name)) for name in head) for row in self.rows)
        return Sheet(self.title, columns, rows, (self.note,) if self.note else ())

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.json, NAME.md and, with a figure, NAME.svg and NAME-narrow.svg for phones.

        Returns:
            Paths of the files.

        Raises:
            OSError: a file cannot be written.

        """
        output_folder(folder)
        head = {
            "schema_version": 1,
            "name": self.name,
            "title": self.title,
            "note": self.note,
        }
        paths = [folder / f"{self.name}.json", folder / f"{self.name}.md"]
        for path, text in zip(
            paths, (_json_row_per_line(head, self.rows), self.to_markdown()), strict=True
        ):
            write_file(path, text)
        if self.draw is not None:
            for width in WIDTHS:
                drawn = self._drawn(self.draw, width)
                paths.append(write_file(folder / f"{self.name}{width.suffix}.svg", drawn))
        return paths

    def _described(self) -> str:
        """Say in words what the figure shows; the table has its values."""
        return f"{self.title}: the values of the table below as a figure"

    def _drawn(self, draw: Callable[["Axes"], None], width: Width) -> bytes:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        with figure_style(width):
            height = 0.75 * width.inches if width.narrow else 4.2
            figure = Figure(
                figsize=(width.inches, max(height, 1.2 + _INCHES * self.places)),
                layout="constrained",
            )
            FigureCanvasSVG(figure)
            axes = figure.add_subplot()
            draw(axes)
            labels = axes.get_legend_handles_labels()[1]
            if len(labels) > 1 and not name_lines(axes):
                figure.legend(loc="outside lower left")
                figure.set_figheight(figure.get_figheight() + _INCHES * len(labels))
            figure.suptitle(self.title, x=0.02, ha="left")
            return to_svg(figure, self._described())


def _json_row_per_line(head: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> str:
    lines = ",\n  ".join(json.dumps(dict(row)) for row in rows)
    return f'{json.dumps(dict(head))[:-1]}, "rows": [\n  {lines}]}}\n'


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _is_short(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    return str(value)
