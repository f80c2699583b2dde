"""fanin bench serving."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import readable, require_writable, requires, say
from .options import Dense, Model, Out, Seed, Threads, names, show_and_save


def bench_serving(
    model: Model,
    out: Out,
    dense: Dense = None,
    scenario: Annotated[
        str, typer.Option("--scenario", "-s", help="SingleStream, Server or both.")
    ] = "SingleStream,Server",
    time: Annotated[
        float, typer.Option("--time", "-t", help="Length of an engine's turn, in seconds.")
    ] = 10.0,
    turns: Annotated[int, typer.Option(help="Turns of every engine in a scenario.")] = 3,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Queries per second in Server.", show_default="70 % of what dense can serve"
        ),
    ] = None,
    target_latency: Annotated[
        float, typer.Option(help="Limit of Server's 99th percentile, in milliseconds.")
    ] = 100.0,
    workers: Annotated[int, typer.Option(help="Threads that answer Server's queries.")] = 1,
    threads: Threads = 1,
    server: Annotated[
        bool, typer.Option("--server", help="Also measure fanin serve, over HTTP on this machine.")
    ] = False,
    max_overhead: Annotated[
        float | None,
        typer.Option(
            help="Exit with status 1 if the server adds more than this to a request, in "
            "milliseconds.",
            show_default="no limit",
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Measure MLPerf-style online latency with MLCommons' LoadGen, dense and condensed in turn.

    Sessions run in this process and, with --server, also in servers. These are not MLPerf results.
    """
    requires("bench", "onnxruntime", "matplotlib")
    requires("loadgen", "mlperf_loadgen")
    from ...deploy import SessionError
    from ...deploy.bench import RequirementError
    from ...deploy.bench.measure.loadgen import SCENARIOS
    from ...deploy.bench.measure.server import ServerError
    from ...deploy.bench.suites.serving import BenchServingSpec, server_overhead
    from ...deploy.bench.suites.serving import bench_serving as measure
    from ...deploy.bench.suites.specs import choices

    if max_overhead is not None and not (server and "SingleStream" in names(scenario)):
        raise typer.BadParameter(
            "requires --server and --scenario SingleStream", param_hint="--max-overhead"
        )
    with readable(SessionError, RequirementError, ServerError, OSError, ValueError):
        spec = BenchServingSpec(
            model=model,
            dense=dense,
            scenarios=choices("scenarios", names(scenario), SCENARIOS),
            seconds=time,
            turns=turns,
            rate=rate,
            target_latency=target_latency / 1e3,
            workers=workers,
            threads=threads,
            seed=seed,
            server=server,
        )
        require_writable(out)
        result = measure(spec, progress=say)
        show_and_save(result, out)
    overhead = server_overhead(result)
    if max_overhead is not None and (overhead is None or 1e3 * overhead > max_overhead):
        typer.secho(
            f"fanin: the server's overhead exceeds {max_overhead:g} ms or was not measured",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)
