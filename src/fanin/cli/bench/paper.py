"""fanin bench paper."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ..common import numbers, require_writable, requires, say
from . import options as opt


def bench_paper(
    out: opt.Out,
    batch: Annotated[
        str | None, typer.Option("--batch", "-b", help="Batch sizes.", show_default="1,8,64,256")
    ] = None,
    sparsity: opt.Sparsity = None,
    threads: Annotated[str, typer.Option(help="Intra-op threads of every engine.")] = "1,2",
    ablated: Annotated[float, typer.Option(help="Share of ablated neurons.")] = 0.3,
    precision: opt.Precision = "float32",
    engines: Annotated[
        str | None,
        typer.Option(help="As in bench layer.", show_default="all of the precision"),
    ] = None,
    trained: Annotated[
        list[str] | None,
        typer.Option(
            help="Run folder or exported ONNX file whose layer is measured in addition to the "
            "random ones; FILE::NAME selects one of its layers. Can be repeated."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer cases and rounds, no compiled engines; takes minutes."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            "-t",
            help="Time limit in minutes, without preparation.",
            show_default="38",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Interleaved rounds of a case.", show_default="31")
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option(help="Start no case after this many minutes; run again to continue."),
    ] = None,
    deepsparse_python: opt.DeepSparsePython = None,
    seed: opt.Seed = 0,
    raw: opt.Raw = False,
) -> None:
    """Measure the paper's CPU figures: one layer by threads, batch size and sparsity, every engine.

    Finished cases are kept in OUT/cases and skipped when the command is run again.
    """
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench import BenchPaperSpec, print_report
    from ...deploy.bench import bench_paper as measure
    from ...deploy.bench.suites.paper import SUITE_OF
    from ...deploy.bench.suites.paper_report import paper_document, save_paper
    from ...deploy.bench.suites.trained_layer import load_trained_layer

    with opt.errors_of_user():
        layers = [text.partition("::") for text in trained or []]
        listed = opt.engines(engines, precision, SUITE_OF)
        spec = dataclasses.replace(
            BenchPaperSpec.quick(precision=precision)
            if quick
            else BenchPaperSpec(precision=precision, engines=SUITE_OF[precision]),
            threads=numbers(threads, int, "--threads"),
            ablated=ablated,
            trained=tuple(load_trained_layer(Path(file), name or None) for file, _, name in layers),
            seed=seed,
            **opt.given(
                batches=opt.some(batch, int, "--batch"),
                sparsities=opt.some(sparsity, float, "--sparsity"),
                engines=None if engines is None else listed,
                rounds=rounds,
                minutes=minutes,
                deepsparse_python=deepsparse_python,
            ),
        )
        require_writable(out)
        result = measure(spec, out, stop_after=stop_after, progress=say)
        print_report(paper_document(result))
        opt.say_written(save_paper(result, out, raw=raw))
