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
    precision: opt.Precision = "float32",
    engines: Annotated[
        str | None,
        typer.Option(
            help="dense,condensed, optionally structured (MODEL.structured.onnx beside MODEL), "
            "and deepsparse, openvino (which run the dense file). With --precision int8 "
            "dense,condensed, and of the dense file quantized dense-int8-static, "
            "condensed-int8-static, openvino-int8, deepsparse-int8, dense-int8-dynamic, "
            "condensed-int8-dynamic.",
            show_default="dense,condensed; with int8 all",
        ),
    ] = None,
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
    from ...deploy.bench.suites.model import DEFAULT_ENGINES

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
            precision=precision,
            engines=opt.engines(engines, precision, DEFAULT_ENGINES),
            breakdown=breakdown,
            **opt.given(deepsparse_python=deepsparse_python),
        )
        opt.run(measure, spec, out, raw=raw)
