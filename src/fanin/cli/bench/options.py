"""Options that bench commands share, their parsing, and the output of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..common import numbers, readable, require_writable, say

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
        help="Python that has DeepSparse; make deepsparse-env installs the default one.",
        show_default=".cache/deepsparse-venv/bin/python",
    ),
]
Mask = Annotated[
    str,
    typer.Option(
        help="Sparsity masks: random, clustered, blocks (of 4 columns), or a run folder or "
        "exported ONNX file, whose layer is used. Several can be given."
    ),
]
Layer = Annotated[
    str | None, typer.Option(help="Parameter or node, if the mask's file has several layers.")
]
Sparsity = Annotated[str | None, typer.Option(help="Sparsities.", show_default="0.8,0.9,0.95,0.99")]
Batches = Annotated[str, typer.Option("--batch", "-b", help="Batch sizes.")]
Threads = Annotated[int, typer.Option(help="Intra-op threads of every engine.")]
Rounds = Annotated[int, typer.Option(help="Interleaved rounds.")]
Time = Annotated[
    float | None,
    typer.Option(
        "--time",
        "-t",
        help="Time limit for the rounds of a case, in seconds; five rounds are always measured.",
        show_default="no limit",
    ),
]
Warmup = Annotated[
    float, typer.Option("--warmup", "-w", help="Maximum warm-up time of an engine, in seconds.")
]
Conditions = Annotated[
    str,
    typer.Option(
        help="Further rounds, with caches flushed before each run (cold) or a pause of 5 to 50 ms "
        "(paced); none omits them."
    ),
]
Pin = Annotated[bool, typer.Option(help="Pin to as many CPUs as there are threads.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Also write raw.json, with the times of every round.")
]
Precision = Annotated[
    str,
    typer.Option(help="float32, or int8: engines of 8-bit integers, beside those of float32."),
]
Seed = Annotated[int, typer.Option(help="Seed of masks, weights and inputs.")]


def names(text: str) -> tuple[str, ...]:
    """Split ``cold,paced``; ``none`` gives an empty tuple."""
    return () if text == "none" else tuple(text.split(","))


def engines(
    text: str | None, precision: str, defaults: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Split ``--engines``; those of the precision by default."""
    if precision not in defaults:
        raise typer.BadParameter(
            f"{precision!r} is none of {', '.join(defaults)}", param_hint="--precision"
        )
    return defaults[precision] if text is None else names(text)


def some(text: str | None, kind: Callable[[str], Any], option: str) -> tuple[Any, ...] | None:
    """Parse numbers as ``numbers`` does; None if the option was not given."""
    return None if text is None else numbers(text, kind, option)


def given(**values: Any) -> dict[str, Any]:
    """Keep the options that are given: for the others the spec has defaults."""
    return {name: value for name, value in values.items() if value is not None}


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ``3072x768,768x3072``."""
    try:
        pairs = [part.split("x") for part in text.split(",")]
        return tuple((int(inputs), int(outputs)) for inputs, outputs in pairs)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form 3072x768,768x3072", param_hint="--shapes"
        ) from None


def masks(text: str, layer: str | None) -> tuple[tuple[str, ...], TrainedLayer | None]:
    """Split ``--mask`` into names of random masks and the layer of a file."""
    from ...deploy.bench.suites.random_layer import MASKS
    from ...deploy.bench.suites.trained_layer import load_trained_layer

    parts = text.split(",")
    files = [Path(part) for part in parts if part not in MASKS]
    if len(files) > 1:
        raise typer.BadParameter(
            f"{text!r} has several files; give one besides {', '.join(MASKS)}", param_hint="--mask"
        )
    if layer is not None and not files:
        raise typer.BadParameter("--layer requires a file in --mask", param_hint="--layer")
    trained = load_trained_layer(files[0], layer) if files else None
    return tuple(part for part in parts if part in MASKS), trained


def errors_of_user() -> AbstractContextManager[None]:
    """Report errors that a user can fix in one line; see readable."""
    from ...deploy import SessionError
    from ...deploy.bench import RequirementError
    from ...export import ExportError

    return readable(SessionError, RequirementError, ExportError, OSError, ValueError)


def run(
    measure: Callable[..., Result[Any]], spec: object, folder: Path, *, raw: bool = False
) -> None:
    """Measure as ``spec`` says, then show and save the result."""
    require_writable(folder)
    show_and_save(measure(spec, progress=say), folder, raw=raw)


def show_and_save(result: Result[Any], folder: Path, *, raw: bool = False) -> None:
    """Print first, then write, so that a full disk does not lose the measurement."""
    from ...deploy.bench import print_report, report_of, save_result

    print_report(report_of(result))
    say_written(save_result(result, folder, raw=raw))


def say_written(paths: list[Path]) -> None:
    """Print the files' paths."""
    typer.echo("Wrote " + ", ".join(map(str, paths)))
