"""fanin bench scaling."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..common import require_writable, requires, say
from . import options as opt

if TYPE_CHECKING:
    from ...deploy.bench import Result

PARTS = ("threads", "networks", "batch", "outputs", "crossover")
_DEFAULT = tuple(part for part in PARTS if part != "networks")


def bench_scaling(
    out: opt.Out,
    of: Annotated[
        str,
        typer.Option(
            help="What to vary: threads (of a layer), networks (threads, of whole networks), "
            "batch, outputs (1,000 to 1,000,000, with 32 of 1,024 inputs each, compared with the "
            "bandwidth of each level of memory), crossover (the sparsity above which condensed is "
            "faster than dense)."
        ),
    ] = ",".join(_DEFAULT),
    models: Annotated[
        str | None,
        typer.Option(
            help="Of networks: names of fanin bench zoo, or ONNX files with dense baselines.",
            show_default="mlp,resnet-50,vit-b-16",
        ),
    ] = None,
    files: Annotated[Path, typer.Option(help="Folder for the ONNX files of networks.")] = Path(
        ".cache/bench-models"
    ),
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Take ONNX files of networks that are there.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Interleaved rounds.", show_default="31, or less")
    ] = None,
    seed: opt.Seed = 0,
    raw: opt.Raw = False,
) -> None:
    """Measure scaling with threads, batch size and outputs, and the break-even sparsity.

    Each part has its own folder in OUT; OUT/index.html shows all parts measured so far.
    """
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench.report.html import save_page

    if models is not None and "networks" not in opt.names(of):
        raise typer.BadParameter("it goes with --of networks", param_hint="--models")
    parts = opt.names(of)
    if not parts or not set(parts) <= set(PARTS):
        raise typer.BadParameter(f"{of!r}: there are {', '.join(PARTS)}", param_hint="--of")
    # Without --rounds, each part has its own default.
    options = opt.given(seed=seed, rounds=5 if quick and rounds is None else rounds)
    with opt.errors_of_user():
        require_writable(out)
        for part in parts:
            if part == "networks":
                result = _measure_networks(models, files, options, reuse=reuse)
            else:
                result = _measure(part, options)
            opt.show_and_save(result, out / part, raw=raw)
        shown = [out / part for part in PARTS if os.path.isfile(out / part / "results.md")]
        typer.echo(f"Wrote {save_page(shown, out / 'index.html', 'fanin: scaling')}")


def _measure(part: str, options: dict[str, Any]) -> Result[Any]:
    if part == "outputs":
        from ...deploy.bench import BenchKernelsSpec, bench_kernels

        return bench_kernels(BenchKernelsSpec.scaling(**options), progress=say)
    if part == "crossover":
        from ...deploy.bench.suites.crossover import BenchCrossoverSpec, bench_crossover

        return bench_crossover(BenchCrossoverSpec(**options), progress=say)
    from ...deploy.bench.suites.scaling import BenchScalingSpec, bench_scaling

    make = BenchScalingSpec.over_threads if part == "threads" else BenchScalingSpec.over_batches
    return bench_scaling(make(**options), progress=say)


def _measure_networks(
    models: str | None, files: Path, options: dict[str, Any], *, reuse: bool
) -> Result[Any]:
    from ...deploy.bench.suites.network_scaling import BenchNetworksSpec, bench_networks

    spec = BenchNetworksSpec(**opt.given(models=opt.names(models) if models else None), **options)
    if not all(os.path.isfile(name) for name in spec.models):
        requires("train", "torch", "torchvision")
    return bench_networks(spec, files, reuse=reuse, progress=say)
