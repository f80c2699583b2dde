"""fanin doctor, fanin serve, fanin triton-repo."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from .._base.terminal import terminal_width
from .common import FAILED, CustomOpLibraries, colored, readable, requires, show_sheet


def doctor(
    model: Annotated[
        Path | None, typer.Argument(help="Also check that this model opens, and show its kernels.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Also show how a session of so many threads shares the work of MODEL's condensed "
            "layers: planned, not measured. More than the CPUs of this machine are allowed.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Show that for this batch, too, not for 1 alone.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    custom_op_library: CustomOpLibraries = None,
) -> None:
    """Check everything needed to run exported models; exit with status 1 if a check fails."""
    from ..deploy.doctor import check_model_file, check_plan, run_checks
    from ..deploy.doctor_plan import plan_sheet
    from ..deploy.doctor_print import check_lines, findings

    if threads is None and batch is not None:
        raise typer.BadParameter("it goes with --threads", param_hint="--batch")
    if model is None and threads is not None:
        raise typer.BadParameter("it goes with a model", param_hint="--threads")
    checks = run_checks()
    plan = None
    if model is not None:
        libraries = custom_op_library or ()
        of_model = check_model_file(model, libraries)
        checks += of_model
        if threads is not None and of_model[0].ok:
            check, plan = check_plan(model, threads, sorted({1, batch or 1}), libraries)
            checks.append(check)
    if as_json:
        typer.echo(json.dumps(findings(checks, plan), indent=2))
    else:
        for line in check_lines(checks, terminal_width(), colored):
            print(line)
        if plan is not None:
            show_sheet(plan_sheet(plan))
    if not all(check.ok for check in checks):
        raise typer.Exit(FAILED)


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]PATH...",
            help="An .onnx file, or a folder of versions (1/model.onnx, 2/model.onnx).",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 is all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 chooses a free one and logs it.")] = 8000,
    workers: Annotated[int, typer.Option(help="Processes, each with its own sessions.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads of a session; by default CPUs / workers.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Parallel runs of a model; by default CPUs / workers / threads."),
    ] = None,
    queue: Annotated[int, typer.Option(help="Queued requests of a model; more get 503.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds in queue and session; then 504.")] = 30.0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request; more get 413.")] = 64 << 20,
    max_buffered: Annotated[
        int | None,
        typer.Option(
            help="Bytes of requests and responses that a worker holds; then 503. By default 8 of "
            "the largest requests."
        ),
    ] = None,
    max_connections: Annotated[int, typer.Option(help="Connections of a worker; then 503.")] = 512,
    max_dimension: Annotated[
        int, typer.Option(help="Largest size of a dimension that the model leaves open (batch).")
    ] = 4096,
    min_dimension: Annotated[
        int, typer.Option(help="Smallest such size; 0 allows empty inputs (docs/serving.md).")
    ] = 1,
    max_batch: Annotated[
        int, typer.Option(help="Most rows in a run with dynamic batching; 1 turns it off.")
    ] = 1,
    batch_delay: Annotated[
        float, typer.Option(help="Seconds that a request may wait for others of its batch.")
    ] = 0.002,
    versions: Annotated[int, typer.Option(help="How many of the newest versions to serve.")] = 1,
    poll: Annotated[
        float, typer.Option(help="Seconds between checks for changed files; 0 never checks.")
    ] = 2.0,
    trial_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for a separate process to open a version and run it once before the "
            "server opens it, so that a crash cannot end the server; 0 omits this trial."
        ),
    ] = 600.0,
    drain_delay: Annotated[
        float, typer.Option(help="Seconds after SIGTERM in which requests are still accepted.")
    ] = 1.0,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds after that for pending requests to finish.")
    ] = 30.0,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request, not only failed ones.")
    ] = False,
    log_format: Annotated[str, typer.Option(help="json or text.")] = "json",
    custom_op_library: CustomOpLibraries = None,
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
            custom_op_libraries=tuple(map(str, custom_op_library or ())),
        )
        from ..deploy.serve.server import serve as run

        status = run(settings)
    raise typer.Exit(status)


def triton_repo(
    model: Annotated[str, typer.Argument(metavar="[NAME=]MODEL.onnx")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Repository to create or extend.")],
    mount: Annotated[
        str, typer.Option(help="Path of the repository on the serving machine.")
    ] = "/models",
    model_version: Annotated[int, typer.Option(help="Version to write.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each session.")] = 1,
    instances: Annotated[int, typer.Option(help="Sessions of the model.")] = 1,
    max_batch: Annotated[
        int, typer.Option(help="Most rows in a batch that Triton forms; 0 turns batching off.")
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
