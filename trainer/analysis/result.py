"""An analysis: a table and a figure, written as JSON, Markdown and PNG."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._base.atomic import atomic_file, output_folder, write_file
from ..._base.tables import Column, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Analysis:
    """One table with its figure.

    Attributes:
        name: name of the files.
        title: heading.
        rows: values by column: numbers, strings, lists or None.
        note: what was counted, and how.
        draw: draws the figure into axes; None: no figure.

    """

    name: str
    title: str
    rows: Sequence[Mapping[str, object]]
    note: str = ""
    draw: Callable[["Axes"], None] | None = None

    @property
    def columns(self) -> list[str]:
        """Columns in the order of their first appearance."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def to_markdown(self) -> str:
        """Return title, table and note."""
        head = self.columns
        lines = [f"# {self.title}", "", _line(head), _line(["---"] * len(head))]
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
        """Write NAME.json, NAME.md and, with a figure, NAME.png.

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
            paths.append(folder / f"{self.name}.png")
            self._save_figure(paths[-1], self.draw)
        return paths

    def _save_figure(self, path: Path, draw: Callable[["Axes"], None]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(self.title)
        with atomic_file(path) as file:
            figure.savefig(file, format="png", dpi=120)


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
