"""fanin bench kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import numbers, readable, require_writable, requires, say
from .options import Layer, Out, Raw, Seed, masks, names, show_and_save
from .options import shapes as parse_shapes


def bench_kernels(
    out: Out,
    shapes: Annotated[
        str | None,
        typer.Option(help="Inputs x outputs of the layers.", show_default="3072x768,768x3072"),
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Sparsities.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", "-b", help="Batch sizes.", show_default="1,8,16,64,256")
    ] = None,
    mask: Annotated[
        str,
        typer.Option(
            help="As in bench layer; a file's layer is measured in addition to the others."
        ),
    ] = "random",
    layer: Layer = None,
    values: Annotated[
        str, typer.Option(help="Types of the weights: float32, float16, bfloat16.")
    ] = "float32",
    dispatched: Annotated[
        bool, typer.Option("--dispatched", help="Only the kernel that the dispatch table selects.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Rounds, interleaved with plain reading.")] = 11,
    seed: Seed = 0,
    raw: Raw = False,
) -> None:
    """Compare every kernel that this CPU can run with the limits of one core."""
    requires("bench", "onnx", "matplotlib")
    from ...deploy.bench import BenchKernelsSpec, RequirementError
    from ...deploy.bench import bench_kernels as measure

    with readable(RequirementError, OSError, ValueError):
        random_masks, trained = masks(mask, layer)
        default = BenchKernelsSpec
        spec = BenchKernelsSpec(
            shapes=default.shapes if shapes is None else parse_shapes(shapes),
            sparsities=(
                default.sparsities if sparsity is None else numbers(sparsity, float, "--sparsity")
            ),
            batches=default.batches if batch is None else numbers(batch, int, "--batch"),
            masks=random_masks,
            values=names(values),
            trained=trained,
            dispatched=dispatched,
            rounds=rounds,
            seed=seed,
        )
        require_writable(out)
        show_and_save(measure(spec, progress=say), out, raw=raw)
