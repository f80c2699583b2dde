"""fanin bench model."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import numbers, readable, require_writable, requires, say
from .options import (
    Batches,
    Conditions,
    DeepSparsePython,
    Dense,
    Model,
    Out,
    Pin,
    Raw,
    Rounds,
    Threads,
    Time,
    Warmup,
    names,
    show_and_save,
)


def bench_model(
    model: Model,
    out: Out,
    dense: Dense = None,
    batch: Batches = "1,64",
    engines: Annotated[
        str,
        typer.Option(
            help="dense,condensed, and of structured (MODEL.structured.onnx beside it), "
            "deepsparse, openvino, on the dense file."
        ),
    ] = "dense,condensed",
    breakdown: Annotated[
        bool, typer.Option(help="Also profile the nodes, in runs after the timed ones.")
    ] = True,
    deepsparse_python: DeepSparsePython = None,
    threads: Threads = 1,
    rounds: Rounds = 31,
    time: Time = None,
    warmup: Warmup = 2.0,
    conditions: Conditions = "cold,paced",
    pin: Pin = True,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    raw: Raw = False,
) -> None:
    """Measure a whole exported model against its dense baseline."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy import SessionError
    from ...deploy.bench import BenchModelSpec, RequirementError
    from ...deploy.bench import bench_model as measure

    with readable(SessionError, RequirementError, OSError, ValueError):
        spec = BenchModelSpec(
            model=model,
            dense=dense,
            batches=numbers(batch, int, "--batch"),
            threads=threads,
            rounds=rounds,
            budget=time,
            warmup=warmup,
            conditions=names(conditions),
            pin=pin,
            seed=seed,
            engines=names(engines),
            breakdown=breakdown,
            deepsparse_python=deepsparse_python or BenchModelSpec.deepsparse_python,
        )
        require_writable(out)
        show_and_save(measure(spec, progress=say), out, raw=raw)
