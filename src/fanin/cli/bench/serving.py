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
        str, typer.Option("--scenario", "-s", help="Of SingleStream, Server.")
    ] = "SingleStream,Server",
    time: Annotated[
        float, typer.Option("--time", "-t", help="Seconds of each engine's turn in a scenario.")
    ] = 10.0,
    turns: Annotated[int, typer.Option(help="Turns of every engine.")] = 3,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Queries a second in Server.", show_default="what keeps dense busy 0.7 of the time"
        ),
    ] = None,
    target_latency: Annotated[
        float, typer.Option(help="Milliseconds that Server's 99th percentile must keep.")
    ] = 100.0,
    workers: Annotated[int, typer.Option(help="Threads that answer Server's queries.")] = 1,
    threads: Threads = 1,
    server: Annotated[
        bool, typer.Option("--server", help="Also through fanin serve, over HTTP on this machine.")
    ] = False,
    max_overhead: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds that a request to the server may take over the session, else exit "
            "status 1.",
            show_default="no limit",
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Measure MLPerf-style online latency with MLCommons' LoadGen, dense and condensed in turn.

    Sessions run in this process, with --server also in servers. These are no MLPerf results.
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
            "it is measured with --server and --scenario SingleStream", param_hint="--max-overhead"
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
            f"fanin: the server's overhead is not within {max_overhead:g} ms",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)
