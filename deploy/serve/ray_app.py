"""The server as a Ray Serve application, for many machines. Needs the extra ``[ray-serve]``.

    serve run fanin.deploy.serve.ray_app:build model=/models/mlp.onnx cpus=2 replicas=3

``cpus`` is both what Ray reserves for a replica and the number of threads of its sessions; each
replica runs one request at a time, on all of them. Paths must exist on every machine. The token is
read from the environment in which the application is built, and passed on to the replicas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ray import serve

from .settings import TOKEN_VARIABLE, ServeSettings, SettingsError, check_range

# Settings that may be passed; Ray decides the others (address, workers, drain).
_LIMITS = ("queue", "max_body", "max_buffered", "max_dimension", "min_dimension", "max_batch")
_SERVER = (*_LIMITS, "timeout", "batch_delay", "poll", "trial_timeout")
_RAY = ("model", "cpus", "replicas", "max_replicas", "upscale_delay", "downscale_delay")
_WHOLE = ("cpus", "replicas", "max_replicas", *_LIMITS)


def build(args: Mapping[str, Any]) -> serve.Application:
    """Create the application from plain values, as ``serve run`` and Serve config files pass them.

    Deploying again with other values replaces the replicas one by one. FANIN_SERVE_TOKEN in the
    environment is the token that every request must carry.

    Args:
        args: Values by name. ``model`` is [NAME=]PATH, several of them separated by commas, or a
            list. ``cpus`` is the number of CPUs of each replica (1), ``replicas`` their number (1).
            If ``max_replicas`` is larger, Ray adds replicas while each has more than one request in
            progress, and removes them again, once that average over half a minute has held for
            ``upscale_delay`` or ``downscale_delay`` seconds (Ray's defaults: 30 and 600). The
            others are those of ServeSettings: ``queue`` (4 by default, per replica), ``timeout``,
            ``max_body``, ``max_buffered``, ``max_dimension``, ``min_dimension``, ``max_batch``,
            ``batch_delay``, ``poll``, ``trial_timeout``.

    Returns:
        The application.

    Raises:
        SettingsError: If a value is unknown or invalid.

    """
    values = _checked(args)
    cpus, replicas = values.pop("cpus", 1), values.pop("replicas", 1)
    most = values.pop("max_replicas", replicas)
    if min(cpus, replicas) < 1 or most < replicas:
        raise SettingsError(
            f"cpus is {cpus}, replicas {replicas}, max_replicas {most}: all must be at least 1, "
            "and max_replicas at least replicas"
        )
    delays = {
        f"{name}_s": values.pop(name)
        for name in ("upscale_delay", "downscale_delay")
        if name in values
    }
    if delays and most == replicas:
        raise SettingsError(
            "upscale_delay and downscale_delay need max_replicas above replicas: otherwise the "
            "number of replicas is fixed"
        )
    for name, delay in delays.items():
        check_range(name.removesuffix("_s"), delay, 0, 86400)
    settings = ServeSettings.from_dict(
        {
            "queue": 4,
            **values,
            "threads": cpus,
            "concurrency": 1,
            "drain_delay": 0.0,
            "token": os.environ.get(TOKEN_VARIABLE) or None,
        }
    )
    scale: dict[str, Any] = {"num_replicas": replicas}
    if most > replicas:
        scale = {
            "autoscaling_config": {
                "min_replicas": replicas,
                "max_replicas": most,
                "target_ongoing_requests": 1,
                **delays,
            }
        }
    deployment = serve.deployment(
        name="fanin",
        ray_actor_options={"num_cpus": cpus},
        # One request in progress, and the replica's queue; Ray keeps the rest for other replicas.
        max_ongoing_requests=1 + settings.queue,
        **scale,
    )
    return deployment(serve.ingress(_app_builder(settings))()).bind()


def _app_builder(settings: ServeSettings) -> Callable[[], Any]:
    """Return what a replica calls to create its app; a model that does not open fails it."""

    def build_app() -> Any:
        from . import shared_folder
        from .logs import configure_logging

        shared_folder.forget_inherited()
        from .app import create_app

        configure_logging(settings.log_format)
        app = create_app(settings)
        app.state.fanin.open()
        return app

    return build_app


def _checked(args: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the values and convert them to numbers, since ``serve run`` passes strings."""
    if "token" in args:
        raise SettingsError(
            f"a token is not passed as an argument, which others can read: set {TOKEN_VARIABLE} in "
            "the environment in which the application is built"
        )
    unknown = sorted(set(args) - {*_SERVER, *_RAY})
    if unknown:
        raise SettingsError(
            f"unknown setting: {', '.join(unknown)}. Known: {', '.join((*_RAY, *_SERVER))}"
        )
    if "model" not in args:
        raise SettingsError("there is no model to serve: model=[NAME=]PATH")
    model = args["model"]
    values: dict[str, Any] = {"models": model.split(",") if isinstance(model, str) else model}
    for name, value in args.items():
        if name == "model":
            continue
        try:
            values[name] = int(value) if name in _WHOLE else float(value)
        except (TypeError, ValueError):
            raise SettingsError(f"{name} is {value!r}, not a number") from None
    return values
