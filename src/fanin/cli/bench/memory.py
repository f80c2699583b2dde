"""fanin bench memory."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import readable, require_writable, requires, say
from .options import DeepSparsePython, Dense, Model, Out, names, show_and_save


def bench_memory(
    model: Model,
    out: Out,
    dense: Dense = None,
    sessions: Annotated[int, typer.Option(help="Sessions in one process.")] = 4,
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Samples of the run in each session.")
    ] = 1,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every session.")] = 1,
    engines: Annotated[
        str, typer.Option(help="Of dense, condensed, structured, deepsparse, openvino.")
    ] = "dense,condensed",
    deepsparse_python: DeepSparsePython = None,
) -> None:
    """Measure what a model takes: its file, its memory, and that of each further session."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy import SessionError
    from ...deploy.bench import BenchMemorySpec
    from ...deploy.bench import bench_memory as measure

    with readable(SessionError, OSError, ValueError):
        spec = BenchMemorySpec(
            model=model,
            dense=dense,
            sessions=sessions,
            batch=batch,
            threads=threads,
            engines=names(engines),
            deepsparse_python=deepsparse_python or BenchMemorySpec.deepsparse_python,
        )
        require_writable(out)
        show_and_save(measure(spec, progress=say), out)
