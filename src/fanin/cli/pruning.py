"""fanin prune."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .common import readable, refuse, requires, show
from .sources import refuse_torch_file


def prune(
    source: Annotated[Path, typer.Argument(help="Trained ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    sparsity: Annotated[
        float, typer.Option(help="Share of the weights of the pruned layers to zero, such as 0.9.")
    ],
    distribution: Annotated[
        str,
        typer.Option(
            help="uniform: every layer gets this sparsity; erk: large layers more, small ones less."
        ),
    ] = "uniform",
    dense: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Layers to leave as they are, by name or pattern with *; repeat it for several.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Zero the smallest weights of an ONNX file, equally many in each row, for fanin export.

    Accuracy falls with the sparsity, and only training wins it back: docs/pruning.md.
    """
    if os.path.isdir(source):
        refuse(
            f"{source} is a folder; of a run, write the ONNX file first: fanin export {source} -o "
            "DENSE.onnx"
        )
    refuse_torch_file(source, f"fanin.trainer.prune_(model, {sparsity:g}) and fanin.export.export")
    requires("export", "onnx", "onnx_ir")
    from ..export import ExportError
    from ..export import prune as write

    with readable(ExportError, OSError, ValueError):
        report = write(
            source,
            out,
            sparsity,
            distribution=distribution,  # type: ignore[arg-type]  # checked there
            dense_layers=dense or (),
        )
    show(report, as_json=as_json)
