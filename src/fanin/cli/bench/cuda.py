"""fanin bench cuda."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import numbers, readable, require_writable, requires, say
from .options import Conditions, Out, Raw, Seed, names, show_and_save
from .options import shapes as parse_shapes


def bench_cuda(
    out: Out,
    shapes: Annotated[str, typer.Option(help="Inputs x outputs of the layers.")] = (
        "3072x768,768x3072"
    ),
    sparsity: Annotated[
        str, typer.Option(help="Sparsities, in the order of measurement.")
    ] = "0.9,0.95,0.8,0.99",
    ablated: Annotated[str, typer.Option(help="Shares of ablated neurons.")] = "0",
    batch: Annotated[str, typer.Option("--batch", "-b", help="Batch sizes.")] = (
        "1,256,8,64,2048,16,32"
    ),
    activations: Annotated[
        str, typer.Option(help="Types of x and y: float32, float16, bfloat16.")
    ] = "float32,bfloat16",
    values: Annotated[str, typer.Option(help="Type of the condensed weights.")] = "float32",
    launch: Annotated[
        str,
        typer.Option(
            help="How calls reach the device: graph (a CUDA graph of consecutive calls), stream "
            "(consecutive plain launches), call (one call, until it has finished), ring (a CUDA "
            "graph of calls on copies of the weights that do not fit into the L2)."
        ),
    ] = "graph,stream",
    convolutions: Annotated[
        bool, typer.Option(help="Also measure two convolutions of ResNet-50 in ONNX Runtime.")
    ] = True,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 11,
    conditions: Conditions = "cold",
    time: Annotated[
        float | None,
        typer.Option(
            "--time", "-t", help="Start no case after this many seconds.", show_default="no limit"
        ),
    ] = None,
    emulated: Annotated[
        bool,
        typer.Option("--emulated", help="Rehearse without a GPU; the times are meaningless."),
    ] = False,
    seed: Seed = 0,
    raw: Raw = False,
) -> None:
    """Measure layers on a GPU: the condensed kernels, torch, CSR, ONNX Runtime's CUDA provider."""
    requires("bench", "onnx", "matplotlib")
    requires("train", "torch")
    from ...deploy.bench import RequirementError
    from ...deploy.bench.engines.protocol import EngineUnavailableError
    from ...deploy.bench.suites.cuda import BenchCudaSpec
    from ...deploy.bench.suites.cuda import bench_cuda as measure

    with readable(RequirementError, EngineUnavailableError, OSError, ValueError):
        spec = BenchCudaSpec(
            shapes=parse_shapes(shapes),
            sparsities=numbers(sparsity, float, "--sparsity"),
            ablated=numbers(ablated, float, "--ablated"),
            batches=numbers(batch, int, "--batch"),
            activations=names(activations),
            values=values,
            launches=names(launch),
            convolutions=convolutions,
            rounds=rounds,
            conditions=names(conditions),
            budget=time,
            emulated=emulated,
            seed=seed,
        )
        require_writable(out)
        show_and_save(measure(spec, progress=say), out, raw=raw)
