"""The routes of Open Inference Protocol V2, as a FastAPI app. Needs the extra ``[serve]``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import request_response

from ... import __version__
from . import bounded_json, openapi
from .body import lease_of, read_body, single_header
from .errors import RequestError, error_body
from .guard import Guard
from .inference import InferCall
from .metrics import CONTENT_TYPE
from .operations import SHARED_MEMORY, Operations
from .protocol import HEADER_LENGTH, decode, encode
from .route_aliases import RouteAliases
from .settings import ServeSettings
from .state import ServerState

# Handlers of these read the names from request.path_params: FastAPI would validate declared
# arguments on every request, which costs more than decoding the request.
_MODEL = "/v2/models/{model}"
_VERSION = "/v2/models/{model}/versions/{version}"
# Most bytes in the body of a repository route.
_SMALL = 1 << 16


def create_app(settings: ServeSettings) -> FastAPI:
    """Create the app of a server.

    The caller must call ``app.state.fanin.open()`` (a ServerState), and so can report a model that
    does not open before it listens on a port. Stopping the app closes the state.
    """
    state = ServerState(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await state.wait_for_others()
        await asyncio.to_thread(state.close)

    app = FastAPI(
        title="fanin",
        version=__version__,
        description="Open Inference Protocol V2",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.fanin = state
    app.add_middleware(RouteAliases)
    app.add_middleware(
        Guard,
        token=settings.token,
        budget=state.budget,
        draining=lambda: state.draining,
        access_log=settings.access_log,
        spans=settings.otel,
    )
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    operations = Operations(state)
    _add_models(app, state, operations)  # first: routes are matched in this order
    _add_health(app, state, operations)
    _add_repository(app, state, operations)
    _add_pages(app, state)
    return app


class _DirectRoute(APIRoute):
    """A route that calls its endpoint with only the request, as Starlette's routes do.

    FastAPI's dependency resolution costs more than the rest of its work for a request.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any):
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


def _add_health(app: FastAPI, state: ServerState, operations: Operations) -> None:
    @app.get("/v2/health/live", tags=["health"], responses=openapi.LIVE)
    async def live() -> Response:
        """Return whether the process is alive."""
        return JSONResponse({"live": True})

    @app.get("/v2/health/ready", tags=["health"], responses=openapi.READY)
    async def ready() -> Response:
        """Return whether the server accepts requests: not while it shuts down."""
        reason = operations.why_not_ready()
        return JSONResponse({"ready": True}) if reason is None else _not_ready(reason)

    async def model_ready(request: Request) -> Response:
        """Return whether the model, or the version, is being served."""
        name = request.path_params["model"]
        reason = operations.why_model_not_ready(**request.path_params)
        if reason is not None:
            return _not_ready(reason, name=name)
        return JSONResponse({"name": name, "ready": True})

    names = _fixed_names(state)
    for path in (_MODEL, _VERSION):
        app.get(
            f"{path}/ready",
            tags=["health"],
            responses=openapi.MODEL_READY,
            openapi_extra=openapi.names_in(path, names),
        )(model_ready)


def _fixed_names(state: ServerState) -> list[str]:
    """Return the names of all models, or none if a repository may bring others."""
    return [] if state.settings.model_repository else state.settings.names


def _add_models(app: FastAPI, state: ServerState, operations: Operations) -> None:
    async def metadata(request: Request) -> Response:
        """Describe the inputs, the outputs and the versions being served."""
        return JSONResponse(operations.model_metadata(**request.path_params))

    async def config(request: Request) -> Response:
        """Describe how the model is served, in the fields of Triton's model configuration."""
        return JSONResponse(operations.model_config(**request.path_params))

    async def stats(request: Request) -> Response:
        """Count the model's requests, and the nanoseconds of their phases."""
        return JSONResponse(await operations.statistics(**request.path_params))

    async def all_stats() -> Response:
        """Count the requests of all models that are served."""
        return JSONResponse(await operations.statistics())

    async def infer(request: Request) -> Response:
        """Run the model on the inputs and return its outputs."""
        return await _infer(state, request, **request.path_params)

    names = _fixed_names(state)
    app.get("/v2/models/stats", tags=["metadata"], responses=openapi.ERRORS)(all_stats)
    for path in (_MODEL, _VERSION):
        app.router.add_api_route(
            f"{path}/infer",
            infer,
            methods=["POST"],
            route_class_override=_DirectRoute,
            tags=["inference"],
            response_class=Response,
            responses=openapi.INFER_RESPONSES,
            openapi_extra=openapi.infer_in(path, names),
        )
        for end, endpoint in (("", metadata), ("/config", config), ("/stats", stats)):
            app.get(
                f"{path}{end}",
                tags=["metadata"],
                responses=openapi.ERRORS,
                openapi_extra=openapi.names_in(path, names),
            )(endpoint)

    @app.get("/v2", tags=["metadata"])
    async def server() -> dict[str, Any]:
        """Name the server, its version and its extensions."""
        return operations.server_metadata()


def _add_repository(app: FastAPI, state: ServerState, operations: Operations) -> None:
    async def body_of(request: Request) -> dict[str, Any]:
        return _small_object(await read_body(request, _SMALL, state.settings.timeout))

    @app.post("/v2/repository/index", tags=["repository"], responses=openapi.ERRORS)
    async def index(request: Request) -> list[dict[str, Any]]:
        """List the models with their states and the reasons why any do not load."""
        only = (await body_of(request)).get("ready", False)
        if not isinstance(only, bool):
            raise RequestError("ready is not a boolean")
        return operations.index(only)

    @app.post("/v2/repository/models/{model}/load", tags=["repository"], responses=openapi.ERRORS)
    async def load(request: Request, model: str) -> Response:
        """Load the model's current files; the old version is served until the new one is ready."""
        await operations.load(model, (await body_of(request)).get("parameters") or {})
        return Response()

    @app.post("/v2/repository/models/{model}/unload", tags=["repository"], responses=openapi.ERRORS)
    async def unload(request: Request, model: str) -> Response:
        """Finish the model's pending requests and free it."""
        await operations.unload(model, (await body_of(request)).get("parameters") or {})
        return Response()

    async def unsupported() -> Response:
        raise RequestError(SHARED_MEMORY, 501)

    for kind in ("systemsharedmemory", "cudasharedmemory"):
        for method in ("GET", "POST"):
            app.add_api_route(
                f"/v2/{kind}/{{rest:path}}", unsupported, methods=[method], include_in_schema=False
            )


def _add_pages(app: FastAPI, state: ServerState) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        state.metrics.remove_unloaded()
        text = await asyncio.to_thread(state.metrics.text)
        return Response(text, media_type=CONTENT_TYPE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(openapi.page(app.openapi()))


async def _infer(
    state: ServerState, request: Request, model: str, version: str | None = None
) -> Response:
    log = request.scope.setdefault("fanin", {})
    settings = state.settings
    with InferCall(state, "http", log, request.scope.get("fanin_trace")) as call:
        found = call.find(model, version)
        body = await read_body(request, settings.max_body, settings.timeout)
        header_length = single_header(request, HEADER_LENGTH)
        lease = lease_of(request)
        read = partial(
            decode,
            body,
            header_length,
            found.signature,
            settings.max_dimension,
            settings.min_dimension,
            hold=lease.take,
        )
        strings = any(spec.datatype == "BYTES" for spec in found.signature.inputs)
        small = bounded_json.is_small_request(body, header_length, strings)
        parsed = await call.decode(read, small)
        arrays = await call.run(parsed, settings.timeout)
        binary = all(as_binary for _, as_binary in parsed.outputs)
        # The inputs are no longer needed; the response is held until it is sent.
        parsed.inputs.clear()
        del body, read
        lease.resize(bounded_json.response_size(arrays, binary))
        write = partial(encode, model, call.version, parsed, arrays, found.signature)
        small = bounded_json.is_small_response(arrays, binary)
        content, head = await call.encode(write, small)
        lease.resize(len(content))
        if head is None:
            return Response(content, media_type="application/json")
        headers = {HEADER_LENGTH: str(head)}
        return Response(content, media_type="application/octet-stream", headers=headers)


def _small_object(body: bytes | bytearray) -> dict[str, Any]:
    """Read the body of a repository route, which may be empty."""
    if not body.strip():
        return {}
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None
    if not isinstance(parsed, dict):
        raise RequestError("the body is not a JSON object")
    if not isinstance(parsed.get("parameters") or {}, dict):
        raise RequestError("parameters is not a JSON object")
    return parsed


def _not_ready(reason: str, **more: str) -> Response:
    return JSONResponse({**more, "ready": False, "error": reason}, 503)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    body, headers = error_body(error.status, str(error))
    return Response(body, error.status, headers)


async def _no_route(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "no such path; /docs lists all paths", 405: "this path has other methods"}
    body, headers = error_body(error.status_code, text.get(error.status_code, error.detail))
    headers.update(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return Response(body, error.status_code, headers)
