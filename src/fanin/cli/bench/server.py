"""fanin bench server."""

from __future__ import annotations

from typing import Annotated

import typer

from ..common import readable, require_writable, requires, say
from .options import Dense, Model, Out, show_and_save


def bench_server(
    model: Model,
    out: Out,
    of: Annotated[
        str,
        typer.Option(
            help="load (requests per second, dense and condensed in turn), soak (half that load "
            "for --minutes, with reloads), memory (of one to eight sessions, one and two workers)."
        ),
    ] = "load",
    dense: Dense = None,
    threads: Annotated[int, typer.Option(help="Intra-op threads of a session.")] = 1,
    workers: Annotated[int, typer.Option(help="Worker processes of the server.")] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Concurrent runs of a model.", show_default="that of fanin serve"),
    ] = None,
    connections: Annotated[int, typer.Option(help="Concurrent clients.")] = 4,
    rounds: Annotated[int, typer.Option(help="Turns of each engine under load.")] = 5,
    time: Annotated[
        float, typer.Option("--time", "-t", help="Length of each turn under load, in seconds.")
    ] = 5.0,
    minutes: Annotated[float, typer.Option(help="Length of the soak.")] = 30.0,
    reload_seconds: Annotated[
        float, typer.Option(help="Interval at which a new version replaces the model in a soak.")
    ] = 60.0,
) -> None:
    """Measure fanin serve with clients on this machine: load, soak or memory.

    The exit status is 1 if a request of a soak fails or memory changes by more than 2 %.
    """
    requires("bench", "onnxruntime", "matplotlib")
    requires("serve", "fastapi", "uvicorn")
    from ...deploy import SessionError
    from ...deploy.bench import RequirementError
    from ...deploy.bench.measure.server import ServerError
    from ...deploy.bench.suites.server import BenchServerSpec
    from ...deploy.bench.suites.server import bench_server as measure

    with readable(SessionError, RequirementError, ServerError, OSError, ValueError):
        spec = BenchServerSpec(
            model=model,
            dense=dense,
            part=of,
            threads=threads,
            workers=workers,
            concurrency=concurrency,
            connections=connections,
            rounds=rounds,
            seconds=time,
            minutes=minutes,
            reload_seconds=reload_seconds,
        )
        require_writable(out)
        result = measure(spec, progress=say)
        show_and_save(result, out)
    if not result.facts["kept"]:
        raise typer.Exit(1)
