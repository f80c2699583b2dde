"""fanin bench zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..common import readable, require_writable, requires, say
from .options import (
    Conditions,
    DeepSparsePython,
    Out,
    Precision,
    Raw,
    Rounds,
    Threads,
    names,
    say_written,
)
from .options import engines as chosen_engines


def bench_zoo(
    out: Out,
    models: Annotated[
        str | None,
        typer.Option(
            help="Networks to measure, or all; results of other networks are kept.",
            show_default="vit-b-16,resnet-50,mobilenet-v3-large,mlp,minilm",
        ),
    ] = None,
    sparsity: Annotated[
        float | None,
        typer.Option(help="Sparsity of every sparse layer.", show_default="the network's"),
    ] = None,
    ablated: Annotated[
        float | None,
        typer.Option(help="Share of ablated neurons.", show_default="the network's"),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", "-b", help="Batch size.", show_default="the network's"),
    ] = None,
    threads: Threads = 1,
    precision: Precision = "float32",
    engines: Annotated[
        str | None,
        typer.Option(help="As in bench model.", show_default="all of the precision"),
    ] = None,
    rounds: Rounds = 31,
    time: Annotated[
        float | None,
        typer.Option("--time", "-t", help="Time limit for the rounds of a network, in seconds."),
    ] = 120.0,
    conditions: Conditions = "cold,paced",
    quick: Annotated[
        bool, typer.Option("--quick", help="5 rounds, warm only, at most 20 seconds per network.")
    ] = False,
    processes: Annotated[
        int, typer.Option(help="New processes that measure each network; above 1, warm runs only.")
    ] = 1,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Exit with status 1 unless every network is as fast as dense."
        ),
    ] = False,
    files: Annotated[Path, typer.Option(help="Folder for the networks' ONNX files.")] = Path(
        ".cache/bench-models"
    ),
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Reuse the ONNX files of an earlier run.")
    ] = False,
    deepsparse_python: DeepSparsePython = None,
    raw: Raw = False,
) -> None:
    """Measure networks with random sparse weights: dense, --policy auto and other runtimes."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    requires("train", "torch", "torchvision")
    from ...deploy import SessionError
    from ...deploy.bench import RequirementError, print_report
    from ...deploy.bench.suites.model import ENGINES_OF
    from ...deploy.bench.suites.zoo import BenchZooSpec, is_not_slower
    from ...deploy.bench.suites.zoo import bench_zoo as measure
    from ...deploy.bench.suites.zoo_models import ZOO
    from ...deploy.bench.suites.zoo_report import save_zoo, zoo_document
    from ...export import ExportError

    if quick:
        rounds, conditions = min(rounds, 5), "none"
        time = 20.0 if time is None else min(time, 20.0)
    if processes > 1:
        conditions = "none"
    chosen = BenchZooSpec.models if models is None else names(models)
    with readable(SessionError, RequirementError, ExportError, OSError, ValueError):
        spec = BenchZooSpec(
            sparsity=sparsity,
            ablated=ablated,
            batch=batch,
            threads=threads,
            rounds=rounds,
            budget=time,
            conditions=names(conditions),
            engines=chosen_engines(engines, precision, ENGINES_OF),
            precision=precision,
            models=tuple(ZOO) if chosen == ("all",) else chosen,
            processes=processes,
            deepsparse_python=deepsparse_python or BenchZooSpec.deepsparse_python,
        )
        require_writable(out)
        results = measure(spec, out, files, reuse=reuse, raw=raw, progress=say)
        print_report(zoo_document(results))
        say_written(save_zoo(results, out))
    slower = [name for name, result in results.items() if not is_not_slower(result.cases[0])]
    if check and slower:
        sentence = f"fanin: not shown to be as fast as dense: {', '.join(slower)}"
        typer.secho(sentence, fg=typer.colors.RED, err=True)
        raise typer.Exit(1)
