"""fanin bench layer."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ..common import numbers, requires
from . import options as opt


def bench_layer(
    out: opt.Out,
    in_features: Annotated[
        int | None, typer.Option(help="Inputs of the layer.", show_default="3072")
    ] = None,
    out_features: Annotated[
        int | None, typer.Option(help="Outputs of the layer.", show_default="768")
    ] = None,
    sparsity: opt.Sparsity = None,
    batch: opt.Batches = "1",
    ablated: Annotated[
        float | None, typer.Option(help="Share of ablated neurons.", show_default="0")
    ] = None,
    mask: opt.Mask = "random",
    layer: opt.Layer = None,
    precision: opt.Precision = "float32",
    engines: Annotated[
        str | None,
        typer.Option(
            help="Engines, dense first: dense, condensed, structured, fallback, deepsparse, "
            "openvino, torch, torch-compile, torch-gather, torch-csr, scipy-csr; with narrower "
            "types condensed-float16, condensed-bfloat16, condensed-bfloat16-compute, dense-int8, "
            "openvino-default. With --precision int8: dense, condensed, dense-int8-static, "
            "condensed-int8-static, "
            "openvino-int8, deepsparse-int8, torch-int8-static, dense-int8-dynamic, "
            "condensed-int8-dynamic, deepsparse-int8-float, torch-int8-dynamic.",
            show_default="dense,condensed; with int8 all",
        ),
    ] = None,
    deepsparse_python: opt.DeepSparsePython = None,
    threads: opt.Threads = 1,
    rounds: opt.Rounds = 31,
    time: opt.Time = None,
    warmup: opt.Warmup = 2.0,
    conditions: opt.Conditions = "cold,paced",
    pin: opt.Pin = True,
    seed: opt.Seed = 0,
    raw: opt.Raw = False,
) -> None:
    """Measure one layer with constant fan-in: dense Gemm, CondensedGemm, other runtimes."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench import BenchLayerSpec
    from ...deploy.bench import bench_layer as measure
    from ...deploy.bench.suites.layer_engines import DEFAULT_ENGINES

    with opt.errors_of_user():
        random_masks, trained = opt.masks(mask, layer)
        sizes = opt.given(
            in_features=in_features,
            out_features=out_features,
            sparsities=opt.some(sparsity, float, "--sparsity"),
            ablated=ablated,
        )
        if trained is None:
            layers = BenchLayerSpec(masks=random_masks, **sizes)
        elif sizes:
            options = [f"--{name.replace('_', '-')}" for name in sizes]
            raise typer.BadParameter(
                "a trained layer has its own sizes, sparsity and ablation; leave out "
                + ", ".join(options).replace("sparsities", "sparsity")
            )
        else:
            layers = BenchLayerSpec.of_trained(trained, random_masks)
        spec = dataclasses.replace(
            layers,
            batches=numbers(batch, int, "--batch"),
            precision=precision,
            engines=opt.engines(engines, precision, DEFAULT_ENGINES),
            threads=threads,
            rounds=rounds,
            budget=time,
            warmup=warmup,
            conditions=opt.names(conditions),
            pin=pin,
            seed=seed,
            **opt.given(deepsparse_python=deepsparse_python),
        )
        opt.run(measure, spec, out, raw=raw)
