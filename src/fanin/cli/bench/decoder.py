"""fanin bench decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..common import numbers, require_writable, requires, say
from . import options as opt


def bench_decoder(
    out: opt.Out,
    sparsity: Annotated[
        str, typer.Option(help="Sparsities of the projections of attention and MLP.")
    ] = "0.8,0.9",
    engines: Annotated[
        str,
        typer.Option(help="dense, dense-int8, dense-int4, condensed, condensed-int8, or some."),
    ] = "dense,dense-int8,dense-int4,condensed,condensed-int8",
    size: Annotated[
        str,
        typer.Option(
            help="Hidden and intermediate size, layers, heads, key-value heads, vocabulary."
        ),
    ] = "1536,4096,16,12,3,32000",
    past: Annotated[int, typer.Option(help="Tokens in the cache at the start of a turn.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens that an engine decodes in a turn.")] = 4,
    threads: opt.Threads = 1,
    rounds: opt.Rounds = 31,
    time: opt.Time = None,
    pin: opt.Pin = True,
    files: Annotated[
        Path, typer.Option(help="Folder for the ONNX files; those from earlier runs are reused.")
    ] = Path(".cache/bench-decoders"),
    raw: opt.Raw = False,
) -> None:
    """Measure the tokens per second of a made-up language model, dense and pruned, batch 1.

    The default model has 0.49 billion weights; its files take about 8 GB.
    """
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench.suites.decoder import BenchDecoderSpec
    from ...deploy.bench.suites.decoder import bench_decoder as measure
    from ...deploy.bench.suites.decoder_models import DecoderConfig

    sizes = numbers(size, int, "--size")
    if len(sizes) != len(DecoderConfig.__dataclass_fields__):
        raise typer.BadParameter(f"{size!r} are not six numbers", param_hint="--size")
    with opt.errors_of_user():
        spec = BenchDecoderSpec(
            config=DecoderConfig(*sizes),
            sparsities=numbers(sparsity, float, "--sparsity"),
            engines=opt.names(engines),
            past=past,
            tokens=tokens,
            rounds=rounds,
            budget=time,
            threads=threads,
            pin=pin,
        )
        require_writable(out)
        opt.show_and_save(measure(spec, files, progress=say), out, raw=raw)
