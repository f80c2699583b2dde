"""fanin bench memory."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import requires
from . import options as opt


def bench_memory(
    model: opt.Model,
    out: opt.Out,
    dense: opt.Dense = None,
    sessions: Annotated[int, typer.Option(help="Sessions in one process.")] = 4,
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Batch size of the run in each session.")
    ] = 1,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every session.")] = 1,
    engines: Annotated[
        str, typer.Option(help="dense, condensed, structured, deepsparse, openvino.")
    ] = "dense,condensed",
    deepsparse_python: opt.DeepSparsePython = None,
) -> None:
    """Measure the size of a model's file, its memory, and that of each additional session."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench import BenchMemorySpec
    from ...deploy.bench import bench_memory as measure

    with opt.errors_of_user():
        spec = BenchMemorySpec(
            model=model,
            dense=dense,
            sessions=sessions,
            batch=batch,
            threads=threads,
            engines=opt.names(engines),
            **opt.given(deepsparse_python=deepsparse_python),
        )
        opt.run(measure, spec, out)
