"""fanin bench paper."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ..common import numbers, readable, require_writable, requires, say
from .options import DeepSparsePython, Out, Raw, Seed, names, say_written


def bench_paper(
    out: Out,
    batch: Annotated[
        str | None, typer.Option("--batch", "-b", help="Batch sizes.", show_default="1,8,64,256")
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of zeros.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    threads: Annotated[str, typer.Option(help="Intra-op threads of every engine.")] = "1,2",
    ablated: Annotated[float, typer.Option(help="Share of neurons without weights.")] = 0.3,
    engines: Annotated[
        str | None,
        typer.Option(help="As in bench layer.", show_default="all that compute in float32"),
    ] = None,
    trained: Annotated[
        list[str] | None,
        typer.Option(
            help="Run folder or exported ONNX file whose layer is measured beside the random ones; "
            "FILE::NAME names one of its layers. May be given several times."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Fewer cases and rounds, no compiled engines: minutes in all."
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            "-t",
            help="Bound of the timed part, without preparation.",
            show_default="38",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Interleaved rounds of a case.", show_default="31")
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option(help="Begin no case after so many minutes; the same command goes on later."),
    ] = None,
    deepsparse_python: DeepSparsePython = None,
    seed: Seed = 0,
    raw: Raw = False,
) -> None:
    """Measure the paper's CPU figures: one layer by threads, batch and sparsity, in every engine.

    Finished cases stay in OUT/cases; the command leaves them out when it is given again.
    """
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy import SessionError
    from ...deploy.bench import BenchPaperSpec, RequirementError, print_report
    from ...deploy.bench import bench_paper as measure
    from ...deploy.bench.suites.paper_report import paper_document, save_paper
    from ...deploy.bench.suites.trained_layer import load_trained_layer

    with readable(SessionError, RequirementError, OSError, ValueError):
        layers = [text.partition("::") for text in trained or []]
        default = BenchPaperSpec.quick() if quick else BenchPaperSpec()
        spec = dataclasses.replace(
            default,
            threads=numbers(threads, int, "--threads"),
            batches=default.batches if batch is None else numbers(batch, int, "--batch"),
            sparsities=(
                default.sparsities if sparsity is None else numbers(sparsity, float, "--sparsity")
            ),
            ablated=ablated,
            engines=default.engines if engines is None else names(engines),
            trained=tuple(load_trained_layer(Path(file), name or None) for file, _, name in layers),
            rounds=default.rounds if rounds is None else rounds,
            minutes=default.minutes if minutes is None else minutes,
            seed=seed,
            deepsparse_python=deepsparse_python or default.deepsparse_python,
        )
        require_writable(out)
        result = measure(spec, out, stop_after=stop_after, progress=say)
        print_report(paper_document(result))
        say_written(save_paper(result, out, raw=raw))
