"""fanin bench compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..common import readable


def bench_compare(
    old: Annotated[Path, typer.Argument(help="results.json, or its folder.")],
    new: Annotated[Path, typer.Argument(help="The same of a later run.")],
    fail_if_slower: Annotated[
        bool, typer.Option("--fail-if-slower", help="Exit with status 1 if anything is slower.")
    ] = False,
) -> None:
    """Show which speed-ups over dense changed by more than the noise of both results."""
    from ...deploy.bench import ResultFileError, compare_results
    from ...deploy.bench.report.blocks import comparison_table
    from ...deploy.bench.report.terminal import print_table

    with readable(ResultFileError, OSError):
        compared = compare_results(old, new)
    print_table(comparison_table(compared))
    for line in compared.unmatched:
        typer.secho(line, fg=typer.colors.YELLOW)
    if fail_if_slower and any(one.verdict == "slower" for one in compared.changes):
        raise typer.Exit(1)
