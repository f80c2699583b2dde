"""fanin bench model."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import numbers, requires
from . import options as opt


def bench_model(
    model: opt.Model,
    out: opt.Out,
    dense: opt.Dense = None,
    batch: opt.Batches = "1,64",
    engines: Annotated[
        str,
        typer.Option(
            help="dense,condensed, optionally structured (MODEL.structured.onnx beside MODEL), "
            "and deepsparse, openvino (which run the dense file)."
        ),
    ] = "dense,condensed",
    breakdown: Annotated[
        bool, typer.Option(help="Also profile the nodes, after the timed runs.")
    ] = True,
    deepsparse_python: opt.DeepSparsePython = None,
    threads: opt.Threads = 1,
    rounds: opt.Rounds = 31,
    time: opt.Time = None,
    warmup: opt.Warmup = 2.0,
    conditions: opt.Conditions = "cold,paced",
    pin: opt.Pin = True,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    raw: opt.Raw = False,
) -> None:
    """Measure a whole exported model against its dense baseline."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench import BenchModelSpec
    from ...deploy.bench import bench_model as measure

    with opt.errors_of_user():
        spec = BenchModelSpec(
            model=model,
            dense=dense,
            batches=numbers(batch, int, "--batch"),
            threads=threads,
            rounds=rounds,
            budget=time,
            warmup=warmup,
            conditions=opt.names(conditions),
            pin=pin,
            seed=seed,
            engines=opt.names(engines),
            breakdown=breakdown,
            **opt.given(deepsparse_python=deepsparse_python),
        )
        opt.run(measure, spec, out, raw=raw)
