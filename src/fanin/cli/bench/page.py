"""fanin bench page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..common import readable, requires


def bench_page(
    folders: Annotated[list[Path], typer.Argument(help="Result folders of other bench commands.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "fanin: benchmarks",
) -> None:
    """Write results to one self-contained HTML page with sortable tables and figures."""
    requires("bench", "markdown_it")
    from ...deploy.bench.report.html import PageError, save_page

    with readable(PageError, OSError):
        typer.echo(f"Wrote {save_page(folders, out, title)}")
