"""fanin bench scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..common import require_writable, requires, say
from . import options as opt

if TYPE_CHECKING:
    from ...deploy.bench import Result

PARTS = ("threads", "batch", "outputs", "crossover")


def bench_scaling(
    out: opt.Out,
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
    seed: opt.Seed = 0,
    raw: opt.Raw = False,
) -> None:
    """Measure scaling with threads, batch size and outputs, and the break-even sparsity.

    Each part has a folder of its own in OUT; OUT/index.html shows all that are there.
    """
    requires("bench", "onnx", "onnxruntime", "matplotlib")
    from ...deploy.bench.report.html import save_page
    from ...export import ExportError

    parts = opt.names(of)
    if not parts or not set(parts) <= set(PARTS):
        raise typer.BadParameter(f"{of!r}: there are {', '.join(PARTS)}", param_hint="--of")
    # Where no rounds are given, each part has its own number of them.
    options = opt.given(seed=seed, rounds=5 if quick and rounds is None else rounds)
    with opt.errors_of_user(ExportError):
        require_writable(out)
        for part in parts:
            opt.show_and_save(_measure(part, options), out / part, raw=raw)
        shown = [out / part for part in PARTS if (out / part / "results.md").is_file()]
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
