"""fanin doctor, fanin serve, fanin triton-repo."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from .common import readable, requires


def doctor(
    model: Annotated[
        Path | None, typer.Argument(help="A model to look at, too: does it open, on which kernels.")
    ] = None,
) -> None:
    """Check everything that running an exported model needs; exit status 1 when a check fails."""
    from rich.console import Console

    from ..deploy.doctor import check_model_file, checks_table, run_checks

    checks = run_checks()
    if model is not None:
        checks += check_model_file(model)
    Console().print(checks_table(checks))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]PATH...",
            help="An .onnx file, or a folder of versions (1/model.onnx, 2/model.onnx).",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 is every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one and logs it.")] = 8000,
    workers: Annotated[int, typer.Option(help="Processes, each with its own sessions.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads of a session; unless given, CPUs / workers.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Runs of a model at a time; unless given, CPUs / workers / threads."),
    ] = None,
    queue: Annotated[int, typer.Option(help="Requests of a model that may wait; then 503.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds in queue and session; then 504.")] = 30.0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request; more is 413.")] = 64 << 20,
    max_buffered: Annotated[
        int | None,
        typer.Option(
            help="Bytes of requests and answers that a worker holds; then 503. Unless given, 8 of "
            "the largest requests."
        ),
    ] = None,
    max_connections: Annotated[int, typer.Option(help="Connections of a worker; then 503.")] = 512,
    max_dimension: Annotated[
        int, typer.Option(help="Largest size where the model leaves it open (batch).")
    ] = 4096,
    min_dimension: Annotated[
        int, typer.Option(help="Smallest such size; 0 takes empty inputs (docs/serving.md).")
    ] = 1,
    max_batch: Annotated[
        int, typer.Option(help="Rows that dynamic batching joins to a run; 1 is off.")
    ] = 1,
    batch_delay: Annotated[
        float, typer.Option(help="Seconds that a request may wait for others of its batch.")
    ] = 0.002,
    versions: Annotated[int, typer.Option(help="Newest versions of a folder to serve.")] = 1,
    poll: Annotated[
        float, typer.Option(help="Seconds between looks for changed files; 0 never looks.")
    ] = 2.0,
    trial_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for a version to open and run once in a process of its own, before the "
            "server opens it, so that a crash ends that one alone; 0 does without."
        ),
    ] = 600.0,
    drain_delay: Annotated[
        float, typer.Option(help="Seconds after SIGTERM in which requests are still taken.")
    ] = 1.0,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds for requests under way to end after that.")
    ] = 30.0,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request, not the failed alone.")
    ] = False,
    log_format: Annotated[str, typer.Option(help="json or text.")] = "json",
) -> None:
    """Serve models over HTTP: Open Inference Protocol V2, /metrics, /docs (docs/serving.md).

    A token that every request must carry is taken from the environment: FANIN_SERVE_TOKEN.
    """
    requires("serve", "fastapi", "uvicorn", "prometheus_client")
    from ..deploy import SessionError
    from ..deploy.serve import ModelSource, ServeSettings, SettingsError
    from ..deploy.serve.settings import TOKEN_VARIABLE

    with readable(SettingsError, SessionError):
        settings = ServeSettings(
            tuple(map(ModelSource.parse, models)),
            host=host,
            port=port,
            workers=workers,
            threads=threads,
            concurrency=concurrency,
            queue=queue,
            timeout=timeout,
            max_body=max_body,
            max_buffered=max_buffered,
            max_connections=max_connections,
            max_dimension=max_dimension,
            min_dimension=min_dimension,
            max_batch=max_batch,
            batch_delay=batch_delay,
            versions=versions,
            poll=poll,
            trial_timeout=trial_timeout,
            drain_delay=drain_delay,
            drain_timeout=drain_timeout,
            token=os.environ.get(TOKEN_VARIABLE) or None,
            access_log=access_log,
            log_format=log_format,
        )
        from ..deploy.serve.server import serve as run

        status = run(settings)
    raise typer.Exit(status)


def triton_repo(
    model: Annotated[str, typer.Argument(metavar="[NAME=]MODEL.onnx")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Repository, made or added to.")],
    mount: Annotated[
        str, typer.Option(help="Where the repository stands on the machine that serves.")
    ] = "/models",
    model_version: Annotated[int, typer.Option(help="Version to write.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each session.")] = 1,
    instances: Annotated[int, typer.Option(help="Sessions of the model.")] = 1,
    max_batch: Annotated[
        int, typer.Option(help="Rows that Triton may join to a batch; 0 is off.")
    ] = 0,
) -> None:
    """Write a model and fanin's op library into a model repository of NVIDIA Triton."""
    from ..deploy import SessionError
    from ..deploy.serve import ModelSource, SettingsError
    from ..deploy.serve.triton import TritonSettings, write_triton_model

    with readable(SettingsError, SessionError, OSError):
        settings = TritonSettings(
            ModelSource.parse(model),
            out,
            mount=PurePosixPath(mount),
            version=model_version,
            threads=threads,
            instances=instances,
            max_batch=max_batch,
        )
        folder = write_triton_model(settings)
    typer.echo(f"{folder}: tritonserver --model-repository={mount}, with {out} mounted there")
