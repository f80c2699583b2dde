"""fanin bench layer."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ..common import numbers, readable, require_writable, requires, say
from .options import (
    Batches,
    Conditions,
    DeepSparsePython,
    Layer,
    Mask,
    Out,
    Pin,
    Raw,
    Rounds,
    Seed,
    Threads,
    Time,
    Warmup,
    masks,
    names,
    show_and_save,
)


def bench_layer(
    out: Out,
    in_features: Annotated[
        int | None, typer.Option(help="Inputs of the layer.", show_default="3072")
    ] = None,
    out_features: Annotated[
        int | None, typer.Option(help="Outputs of the layer.", show_default="768")
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of zeros.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    batch: Batches = "1",
    ablated: Annotated[
        float | None, typer.Option(help="Share of neurons without weights.", show_default="0")
    ] = None,
    mask: Mask = "random",
    layer: Layer = None,
    engines: Annotated[
        str,
        typer.Option(
            help="Of dense, condensed, structured, fallback, deepsparse, openvino, torch, "
            "torch-compile, torch-gather, torch-csr, scipy-csr; of narrower types "
            "condensed-float16, condensed-bfloat16, dense-int8, openvino-default; dense first."
        ),
    ] = "dense,condensed",
    deepsparse_python: DeepSparsePython = None,
    threads: Threads = 1,
    rounds: Rounds = 31,
    time: Time = None,
    warmup: Warmup = 2.0,
    conditions: Conditions = "cold,paced",
    pin: Pin = True,
    seed: Seed = 0,
    raw: Raw = False,
) -> None:
    """Measure one layer of constant fan-in weights: dense Gemm, CondensedGemm, other runtimes."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy import SessionError
    from ...deploy.bench import BenchLayerSpec, RequirementError
    from ...deploy.bench import bench_layer as measure

    sizes = {
        "--in-features": in_features,
        "--out-features": out_features,
        "--sparsity": sparsity,
        "--ablated": ablated,
    }
    given = [option for option, value in sizes.items() if value is not None]
    with readable(SessionError, RequirementError, OSError, ValueError):
        random_masks, trained = masks(mask, layer)
        if trained is not None and given:
            raise typer.BadParameter(
                "a trained layer has its own sizes, sparsity and ablation; leave out "
                + ", ".join(given)
            )
        default = BenchLayerSpec
        layers = (
            BenchLayerSpec.of_trained(trained, random_masks)
            if trained is not None
            else BenchLayerSpec(
                in_features=default.in_features if in_features is None else in_features,
                out_features=default.out_features if out_features is None else out_features,
                sparsities=(
                    default.sparsities
                    if sparsity is None
                    else numbers(sparsity, float, "--sparsity")
                ),
                ablated=default.ablated if ablated is None else ablated,
                masks=random_masks,
            )
        )
        spec = dataclasses.replace(
            layers,
            batches=numbers(batch, int, "--batch"),
            engines=names(engines),
            threads=threads,
            rounds=rounds,
            budget=time,
            warmup=warmup,
            conditions=names(conditions),
            pin=pin,
            seed=seed,
            deepsparse_python=deepsparse_python or default.deepsparse_python,
        )
        require_writable(out)
        show_and_save(measure(spec, progress=say), out, raw=raw)
