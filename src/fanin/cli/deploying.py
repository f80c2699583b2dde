"""fanin doctor, fanin triton-repo."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from .._base.terminal import output_console, terminal_width
from .common import FAILED, CustomOpLibraries, colored, readable

if TYPE_CHECKING:
    from ..deploy.doctor_plan import ModelPlan


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
        int | None,
        typer.Option(
            min=1,
            help="Compare this batch with the one that MODEL's layers were chosen for; with "
            "--threads, plan for it as well, not for 1 alone.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    custom_op_library: CustomOpLibraries = None,
) -> None:
    """Check everything needed to run exported models; exit with status 1 if a check fails."""
    from ..deploy.doctor import check_model_file, check_plan, run_checks
    from ..deploy.doctor_print import check_lines, findings

    for option, value in (("--batch", batch), ("--threads", threads)):
        if model is None and value is not None:
            raise typer.BadParameter("it goes with a model", param_hint=option)
    checks = run_checks()
    plan = None
    if model is not None:
        libraries = custom_op_library or ()
        of_model = check_model_file(model, libraries, batch)
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
            _print_plan(plan)
    if not all(check.ok for check in checks):
        raise typer.Exit(FAILED)


def _print_plan(plan: ModelPlan) -> None:
    from ..deploy.doctor_plan import plan_table

    output_console().print(plan_table(plan))


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
