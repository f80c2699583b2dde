"""fanin bench layer, kernels and model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import numbers, readable, require_writable, requires, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..deploy.bench import KernelsResult, MemoryResult, Result
    from ..deploy.bench.trained_layer import TrainedLayer

DeepSparsePython = Annotated[
    Path | None,
    typer.Option(
        help="Python that has DeepSparse; make deepsparse-env makes the default one.",
        show_default=".cache/deepsparse-venv/bin/python",
    ),
]

bench = typer.Typer(no_args_is_help=True, help="Measure against dense, interleaved in one run.")


@bench.command("layer")
def bench_layer(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    in_features: Annotated[
        int | None, typer.Option(help="Inputs of the layer.", show_default="3072")
    ] = None,
    out_features: Annotated[
        int | None, typer.Option(help="Outputs of the layer.", show_default="768")
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of zeros.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1",
    ablated: Annotated[
        float | None, typer.Option(help="Share of neurons without weights.", show_default="0")
    ] = None,
    mask: Annotated[
        str,
        typer.Option(
            help="Where weights are: random, clustered, or a run folder or an exported ONNX file "
            "whose layer is taken; several are measured side by side."
        ),
    ] = "random",
    layer: Annotated[
        str | None, typer.Option(help="Parameter or node, when the mask's file has several layers.")
    ] = None,
    engines: Annotated[
        str,
        typer.Option(
            help="Of dense, condensed, structured, fallback, deepsparse, openvino, torch, "
            "torch-compile, torch-gather, torch-csr, scipy-csr; dense first."
        ),
    ] = "dense,condensed",
    deepsparse_python: DeepSparsePython = None,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every engine.")] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 21,
    seed: Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")] = 0,
) -> None:
    """Measure one layer of constant fan-in weights: dense Gemm, CondensedGemm, other runtimes."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ..deploy import SessionError
    from ..deploy.bench import BenchLayerSpec, RequirementError
    from ..deploy.bench import bench_layer as measure

    sizes = {
        "in_features": in_features,
        "out_features": out_features,
        "sparsities": None if sparsity is None else numbers(sparsity, float, "--sparsity"),
        "ablated": ablated,
    }
    sizes = {name: value for name, value in sizes.items() if value is not None}
    common = {
        "batches": numbers(batch, int, "--batch"),
        "engines": tuple(engines.split(",")),
        "threads": threads,
        "rounds": rounds,
        "seed": seed,
    }
    if deepsparse_python is not None:
        common["deepsparse_python"] = deepsparse_python
    with readable(SessionError, RequirementError, OSError, ValueError):
        masks, trained = _masks(mask, layer)
        if trained is None:
            spec = BenchLayerSpec(**sizes, masks=masks, **common)
        elif sizes:
            raise typer.BadParameter(
                "a trained layer has its own sizes, sparsity and ablation; leave out --"
                + ", --".join(name.replace("_", "-") for name in sizes)
            )
        else:
            spec = BenchLayerSpec.of_trained(trained, masks, **common)
        require_writable(out)
        _save(measure(spec, progress=say), out)


@bench.command("kernels")
def bench_kernels(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    shapes: Annotated[
        str | None,
        typer.Option(help="Inputs x outputs of the layers.", show_default="3072x768,768x3072"),
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Shares of zeros.", show_default="0.8,0.9,0.95,0.99")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes.", show_default="1,8,16,64,256")
    ] = None,
    mask: Annotated[
        str, typer.Option(help="As in bench layer; a file's layer is measured beside the others.")
    ] = "random",
    layer: Annotated[
        str | None, typer.Option(help="Parameter or node, when the mask's file has several layers.")
    ] = None,
    values: Annotated[
        str, typer.Option(help="Types of the weights: float32, float16, bfloat16.")
    ] = "float32",
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling",
            help="Instead: 1,000 to 1,000,000 outputs, 32 of 1,024 inputs each, batch 1.",
        ),
    ] = False,
    dispatched: Annotated[
        bool, typer.Option("--dispatched", help="Only the kernel that the dispatch table takes.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Rounds, each beside plain reading.")] = 11,
    seed: Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")] = 0,
) -> None:
    """Measure every kernel that this CPU runs against the limits of its core, on one thread."""
    requires("bench", "onnx", "matplotlib")
    from ..deploy.bench import BenchKernelsSpec, RequirementError
    from ..deploy.bench import bench_kernels as measure
    from ..deploy.bench.kernels_report import kernels_notes, kernels_table

    chosen = {
        "shapes": None if shapes is None else _shapes(shapes),
        "sparsities": None if sparsity is None else numbers(sparsity, float, "--sparsity"),
        "batches": None if batch is None else numbers(batch, int, "--batch"),
        "dispatched": dispatched or None,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if scaling and (chosen or layer or mask != "random" or values != "float32"):
        raise typer.BadParameter("--scaling has its own layers; leave the other choices out")
    with readable(RequirementError, OSError, ValueError):
        if scaling:
            spec = BenchKernelsSpec.scaling(rounds=rounds, seed=seed)
        else:
            masks, trained = _masks(mask, layer)
            spec = BenchKernelsSpec(
                masks=masks,
                values=tuple(values.split(",")),
                trained=trained,
                rounds=rounds,
                seed=seed,
                **chosen,
            )
        require_writable(out)
        result = measure(spec, progress=say)
        _print_and_save(result, [kernels_table(result)], kernels_notes(result), out)


@bench.command("model")
def bench_model(
    model: Annotated[Path, typer.Argument(help="Exported ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    dense: Annotated[
        Path | None, typer.Option(help="Dense baseline; default MODEL.dense.onnx beside it.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,64",
    engines: Annotated[
        str,
        typer.Option(help="dense,condensed, and of deepsparse, openvino, on the dense file."),
    ] = "dense,condensed",
    breakdown: Annotated[
        bool, typer.Option(help="Also profile the nodes, in runs after the timed ones.")
    ] = True,
    deepsparse_python: DeepSparsePython = None,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every engine.")] = 1,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 21,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
) -> None:
    """Measure a whole exported model against its dense baseline."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ..deploy import SessionError
    from ..deploy.bench import BenchModelSpec, RequirementError
    from ..deploy.bench import bench_model as measure

    with readable(SessionError, RequirementError, OSError, ValueError):
        spec = BenchModelSpec(
            model=model,
            dense=dense,
            batches=numbers(batch, int, "--batch"),
            threads=threads,
            rounds=rounds,
            seed=seed,
            engines=tuple(engines.split(",")),
            breakdown=breakdown,
            **({} if deepsparse_python is None else {"deepsparse_python": deepsparse_python}),
        )
        require_writable(out)
        _save(measure(spec, progress=say), out)


@bench.command("memory")
def bench_memory(
    model: Annotated[Path, typer.Argument(help="Exported ONNX file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")],
    dense: Annotated[
        Path | None, typer.Option(help="Dense baseline; default MODEL.dense.onnx beside it.")
    ] = None,
    sessions: Annotated[int, typer.Option(help="Sessions in one process.")] = 4,
    batch: Annotated[int, typer.Option(help="Samples of the run in each session.")] = 1,
    threads: Annotated[int, typer.Option(help="Intra-op threads of every session.")] = 1,
    engines: Annotated[
        str, typer.Option(help="Of dense, condensed, deepsparse, openvino.")
    ] = "dense,condensed",
    deepsparse_python: DeepSparsePython = None,
) -> None:
    """Measure what a model takes: its file, its memory, and that of each further session."""
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ..deploy import SessionError
    from ..deploy.bench import BenchMemorySpec
    from ..deploy.bench import bench_memory as measure
    from ..deploy.bench.memory_report import memory_notes, memory_table

    with readable(SessionError, OSError, ValueError):
        spec = BenchMemorySpec(
            model=model,
            dense=dense,
            sessions=sessions,
            batch=batch,
            threads=threads,
            engines=tuple(engines.split(",")),
            **({} if deepsparse_python is None else {"deepsparse_python": deepsparse_python}),
        )
        require_writable(out)
        result = measure(spec, progress=say)
        _print_and_save(result, [memory_table(result)], memory_notes(result), out)


@bench.command("compare")
def bench_compare(
    old: Annotated[Path, typer.Argument(help="results.json, or the folder that holds it.")],
    new: Annotated[Path, typer.Argument(help="The same of a later run.")],
    fail_if_slower: Annotated[
        bool, typer.Option("--fail-if-slower", help="Exit with status 1 when something is.")
    ] = False,
) -> None:
    """Say what got faster or slower, against dense in the same rounds, beyond the noise of both."""
    from rich.console import Console

    from ..deploy.bench import ResultFileError, compare_results

    with readable(ResultFileError, OSError):
        compared = compare_results(old, new)
    Console().print(compared.to_rich_table())
    for line in compared.unmatched:
        typer.secho(line, fg=typer.colors.YELLOW)
    if fail_if_slower and any(one.verdict == "slower" for one in compared.changes):
        raise typer.Exit(1)


def _shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ``3072x768,768x3072``."""
    try:
        pairs = [tuple(map(int, part.split("x"))) for part in text.split(",")]
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 for pair in pairs):
        raise typer.BadParameter(f"{text!r} is not like 3072x768,768x3072", param_hint="--shapes")
    return tuple(pairs)


def _masks(text: str, layer: str | None) -> tuple[tuple[str, ...], TrainedLayer | None]:
    """Split ``--mask`` into the names of made-up masks and the layer of the file in it."""
    from ..deploy.bench.masks import MASKS
    from ..deploy.bench.trained_layer import load_trained_layer

    parts = text.split(",")
    files = [Path(part) for part in parts if part not in MASKS]
    if len(files) > 1:
        raise typer.BadParameter(
            f"{text!r} has several files; give one beside {', '.join(MASKS)}", param_hint="--mask"
        )
    if layer is not None and not files:
        raise typer.BadParameter("--layer goes with a file in --mask", param_hint="--layer")
    trained = load_trained_layer(files[0], layer) if files else None
    return tuple(part for part in parts if part in MASKS), trained


def _save(result: Result, folder: Path) -> None:
    from ..deploy.bench.report import result_notes, result_table, rivals_table

    tables = [result_table(result), rivals_table(result)]
    _print_and_save(result, [table for table in tables if table], result_notes(result), folder)


def _print_and_save(
    result: Result | KernelsResult | MemoryResult,
    tables: list[Table],
    notes: list[str],
    folder: Path,
) -> None:
    from rich.console import Console

    # Printed before saving: a disk that fills up now does not lose the measurement.
    for table in tables:
        Console().print(table)
    for note in notes:
        typer.secho(note, fg=typer.colors.YELLOW)
    paths = result.save(folder)
    typer.echo("Wrote " + ", ".join(str(path) for path in paths))
