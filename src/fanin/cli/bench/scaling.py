"""fanin bench scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ..common import readable, require_writable, requires, say
from .options import Out, Raw, Seed, names, show_and_save

if TYPE_CHECKING:
    from ...deploy.bench import Result

PARTS = ("threads", "batch", "outputs", "crossover")


class _Options(TypedDict, total=False):
    """What all parts take; a part has rounds of its own where there are none."""

    seed: int
    rounds: int


def bench_scaling(
    out: Out,
    of: Annotated[
        str,
        typer.Option(
            help="What to vary: threads, batch, outputs (1,000 to 1,000,000 outputs, 32 of 1,024 "
            "inputs each, against the bandwidth of each level of memory), crossover (the sparsity "
            "above which condensed is faster than dense)."
        ),
    ] = ",".join(PARTS),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Interleaved rounds.", show_default="31, or less")
    ] = None,
    seed: Seed = 0,
    raw: Raw = False,
) -> None:
    """Measure how times grow with threads, batch and outputs, and where sparsity begins to pay.

    Each part has a folder of its own in OUT; OUT/index.html shows all that are there.
    """
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy import SessionError
    from ...deploy.bench import RequirementError
    from ...deploy.bench.report.html import save_page
    from ...export import ExportError

    parts = names(of)
    if not parts or not set(parts) <= set(PARTS):
        raise typer.BadParameter(f"{of!r}: there are {', '.join(PARTS)}", param_hint="--of")
    if quick:
        rounds = 5 if rounds is None else rounds
    options: _Options = {"seed": seed}
    if rounds is not None:
        options["rounds"] = rounds
    with readable(SessionError, RequirementError, ExportError, OSError, ValueError):
        require_writable(out)
        for part in parts:
            result = _measure(part, options)
            show_and_save(result, out / part, raw=raw)
        shown = [out / part for part in PARTS if (out / part / "results.md").is_file()]
        typer.echo(f"Wrote {save_page(shown, out / 'index.html', 'fanin: scaling')}")


def _measure(part: str, options: _Options) -> Result[Any]:
    if part == "outputs":
        from ...deploy.bench import BenchKernelsSpec, bench_kernels

        return bench_kernels(BenchKernelsSpec.scaling(**options), progress=say)
    if part == "crossover":
        from ...deploy.bench.suites.crossover import BenchCrossoverSpec, bench_crossover

        return bench_crossover(BenchCrossoverSpec(**options), progress=say)
    from ...deploy.bench.suites.scaling import BenchScalingSpec, bench_scaling

    make = BenchScalingSpec.over_threads if part == "threads" else BenchScalingSpec.over_batches
    return bench_scaling(make(**options), progress=say)
