"""fanin serve."""

# Options are read from the context, which knows those that stand on the command line.
# ruff: noqa: ARG001

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import CustomOpLibraries, readable, requires


def serve(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]PATH...",
            help="An .onnx file, or a folder of versions (1/model.onnx, 2/model.onnx).",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of these options, by the same names; models = [...] are the arguments. "
            "The command line wins."
        ),
    ] = None,
    model_repository: Annotated[
        str | None,
        typer.Option(
            help="Folder of more models, NAME/1/model.onnx, each perhaps with Triton's "
            "config.pbtxt; what is added or removed there is noticed."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 is all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 chooses a free one and logs it.")] = 8000,
    grpc_port: Annotated[
        int | None, typer.Option(help="Also serve gRPC on this port; 0 chooses and logs one.")
    ] = None,
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
        bool, typer.Option(help="Log every request, not only failed ones.")
    ] = False,
    log_format: Annotated[str, typer.Option(help="json or text.")] = "json",
    otel: Annotated[
        bool,
        typer.Option(
            help="Send spans of requests, queue and run to the collector that OpenTelemetry's "
            "environment variables name."
        ),
    ] = False,
    custom_op_library: CustomOpLibraries = None,
) -> None:
    """Serve models over HTTP: Open Inference Protocol V2, /metrics, /docs (docs/serving.md).

    A token that every request must carry is taken from the environment: FANIN_SERVE_TOKEN.
    """
    requires("serve", "fastapi", "uvicorn", "prometheus_client")
    from ..deploy import SessionError
    from ..deploy.serve import ServeSettings, SettingsError
    from ..deploy.serve.config_file import read_config
    from ..deploy.serve.settings import TOKEN_VARIABLE

    with readable(SettingsError, SessionError):
        values = {} if config is None else read_config(config)
        named = ServeSettings.__dataclass_fields__
        values |= {name: value for name, value in _given(context).items() if name in named}
        if models:
            values["models"] = models
        if custom_op_library:
            values["custom_op_libraries"] = list(map(str, custom_op_library))
        values["token"] = os.environ.get(TOKEN_VARIABLE) or None
        settings = ServeSettings.from_dict(values)
        if settings.grpc_port is not None:
            requires("grpc", "grpc", "google.protobuf")
        if settings.otel:
            requires("otel", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        from ..deploy.serve.server import serve as run

        status = run(settings)
    raise typer.Exit(status)


def _given(context: typer.Context) -> dict[str, Any]:
    """Return the parameters that stand on the command line."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }
