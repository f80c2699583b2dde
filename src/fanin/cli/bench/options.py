"""What the benchmarks' commands share: options, their parsing, and showing results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ...deploy.bench import Result
    from ...deploy.bench.suites.trained_layer import TrainedLayer

Model = Annotated[Path, typer.Argument(help="Exported ONNX file.")]
Dense = Annotated[
    Path | None, typer.Option(help="Dense baseline; default MODEL.dense.onnx beside it.")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
DeepSparsePython = Annotated[
    Path | None,
    typer.Option(
        help="Python that has DeepSparse; make deepsparse-env makes the default one.",
        show_default=".cache/deepsparse-venv/bin/python",
    ),
]
Mask = Annotated[
    str,
    typer.Option(
        help="Where weights are: random, clustered, or a run folder or an exported ONNX file "
        "whose layer is taken; several are measured side by side."
    ),
]
Layer = Annotated[
    str | None, typer.Option(help="Parameter or node, when the mask's file has several layers.")
]
Batches = Annotated[str, typer.Option("--batch", "-b", help="Batch sizes.")]
Threads = Annotated[int, typer.Option(help="Intra-op threads of every engine.")]
Rounds = Annotated[int, typer.Option(help="Interleaved rounds.")]
Time = Annotated[
    float | None,
    typer.Option(
        "--time",
        "-t",
        help="Seconds after which the rounds of a case end, though not before five.",
        show_default="no limit",
    ),
]
Warmup = Annotated[
    float, typer.Option("--warmup", "-w", help="Seconds that an engine gets to become steady.")
]
Conditions = Annotated[
    str,
    typer.Option(
        help="Further rounds, whose runs meet flushed caches (cold) or come after pauses of 5 to "
        "50 ms (paced); none leaves them out."
    ),
]
Pin = Annotated[bool, typer.Option(help="Stay on as many CPUs as there are threads.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Also write raw.json, which has the figures of every round.")
]
Seed = Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")]


def names(text: str) -> tuple[str, ...]:
    """Split ``cold,paced``; ``none`` is nothing."""
    return () if text == "none" else tuple(text.split(","))


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ``3072x768,768x3072``."""
    try:
        pairs = [part.split("x") for part in text.split(",")]
        return tuple((int(inputs), int(outputs)) for inputs, outputs in pairs)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not like 3072x768,768x3072", param_hint="--shapes"
        ) from None


def masks(text: str, layer: str | None) -> tuple[tuple[str, ...], TrainedLayer | None]:
    """Split ``--mask`` into the names of random masks and the layer of the file in it."""
    from ...deploy.bench.suites.random_layer import MASKS
    from ...deploy.bench.suites.trained_layer import load_trained_layer

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


def show_and_save(result: Result[Any], folder: Path, *, raw: bool = False) -> None:
    """Print, then write: a disk that fills up now does not lose the measurement."""
    from ...deploy.bench import print_report, report_of, save_result

    print_report(report_of(result))
    say_written(save_result(result, folder, raw=raw))


def say_written(paths: list[Path]) -> None:
    """Name the files."""
    typer.echo("Wrote " + ", ".join(map(str, paths)))
