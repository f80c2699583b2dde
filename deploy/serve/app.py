"""The routes of Open Inference Protocol V2, as a FastAPI app. Needs the extra ``[serve]``."""

from __future__ import annotations

import asyncio
import json
import time
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
from .errors import (
    BudgetExceededError,
    InsufficientMemoryError,
    RequestError,
    SchedulerClosedError,
    error_body,
)
from .guard import Guard
from .loaded_model import LoadedModel
from .metrics import CONTENT_TYPE
from .protocol import HEADER_LENGTH, InferRequest, decode, encode
from .route_aliases import RouteAliases
from .scheduler import Job
from .settings import ServeSettings
from .state import ServerState

# Handlers of these read the names from request.path_params: FastAPI would validate declared
# arguments on every request, which costs more than decoding the request.
_MODEL = "/v2/models/{model}"
_VERSION = "/v2/models/{model}/versions/{version}"
# Most bytes in the body of a repository route.
_SMALL = 1 << 16
# Most characters of a request id in the log.
_LOGGED = 200


def create_app(settings: ServeSettings) -> FastAPI:
    """Create the app of a server.

    The caller must call ``app.state.fanin.open()`` (a ServerState), and so can report a model that
    does not open before it listens on a port. Stopping the app closes the state.
    """
    state = ServerState(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
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
    )
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    _add_models(app, state)  # first: routes are matched in this order
    _add_health(app, state)
    _add_repository(app, state)
    _add_pages(app, state)
    return app


class _DirectRoute(APIRoute):
    """A route that calls its endpoint with only the request, as Starlette's routes do.

    FastAPI's dependency resolution costs more than the rest of its work for a request.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any):
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


def _add_health(app: FastAPI, state: ServerState) -> None:
    @app.get("/v2/health/live", tags=["health"], responses=openapi.LIVE)
    async def live() -> Response:
        """Return whether the process is alive."""
        return JSONResponse({"live": True})

    @app.get("/v2/health/ready", tags=["health"], responses=openapi.READY)
    async def ready() -> Response:
        """Return whether every model is being served and the server is not shutting down."""
        if state.draining:
            return _not_ready("the server is shutting down")
        if not state.repository.ready():
            return _not_ready("not every model is being served; see POST /v2/repository/index")
        return JSONResponse({"ready": True})

    async def model_ready(request: Request) -> Response:
        """Return whether the model, or the version, is being served."""
        name = request.path_params["model"]
        if not state.repository.versions(name):
            return _not_ready(f"model '{name}' is not loaded", name=name)
        state.repository.find(**request.path_params)
        return JSONResponse({"name": name, "ready": True})

    names = state.settings.names
    for path in (_MODEL, _VERSION):
        app.get(
            f"{path}/ready",
            tags=["health"],
            responses=openapi.MODEL_READY,
            openapi_extra=openapi.names_in(path, names),
        )(model_ready)


def _add_models(app: FastAPI, state: ServerState) -> None:
    async def metadata(request: Request) -> Response:
        """Describe the inputs, the outputs and the versions being served."""
        model = state.repository.find(**request.path_params)
        return JSONResponse(model.metadata(state.repository.versions(model.name)))

    async def infer(request: Request) -> Response:
        """Run the model on the inputs and return its outputs."""
        with state.metrics.in_flight.track_inprogress():
            return await _infer(state, request, **request.path_params)

    names = state.settings.names
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
        app.get(
            path,
            tags=["metadata"],
            responses=openapi.ERRORS,
            openapi_extra=openapi.names_in(path, names),
        )(metadata)

    @app.get("/v2", tags=["metadata"])
    async def server() -> dict[str, Any]:
        """Name the server, its version and its extensions."""
        extensions = ["binary_tensor_data", "model_repository"]
        return {"name": "fanin", "version": __version__, "extensions": extensions}


def _add_repository(app: FastAPI, state: ServerState) -> None:
    async def change(request: Request, action: Callable[[str], None], model: str) -> Response:
        _refuse_contents(await read_body(request, _SMALL, state.settings.timeout))
        if state.settings.workers > 1:
            raise RequestError(
                "with several workers, models are loaded and unloaded only by changing their files"
            )
        await asyncio.get_running_loop().run_in_executor(state.loads, action, model)
        return Response()

    @app.post("/v2/repository/index", tags=["repository"], responses=openapi.ERRORS)
    async def index(request: Request) -> list[dict[str, Any]]:
        """List the models with their states and the reasons why any do not load."""
        body = await read_body(request, _SMALL, state.settings.timeout)
        rows = state.repository.index()
        return [row for row in rows if row["state"] == "READY"] if _only_ready(body) else rows

    @app.post("/v2/repository/models/{model}/load", tags=["repository"], responses=openapi.ERRORS)
    async def load(request: Request, model: str) -> Response:
        """Load the model's current files; the old version is served until the new one is ready."""
        return await change(request, state.repository.load, model)

    @app.post("/v2/repository/models/{model}/unload", tags=["repository"], responses=openapi.ERRORS)
    async def unload(request: Request, model: str) -> Response:
        """Finish the model's pending requests and free it."""
        return await change(request, state.repository.unload, model)


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
    start = time.perf_counter()
    status, split, found = 500, None, None
    log = request.scope.setdefault("fanin", {})
    try:
        found = state.repository.find(model, version)
        settings = state.settings
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
        parsed = await state.call(read, bounded_json.is_small_request(body, header_length, strings))
        log["id"] = parsed.id and parsed.id[:_LOGGED]
        found, job = await _run(state, found, version, parsed)
        split = (job.queue_seconds, job.compute_seconds)
        log["queue_ms"], log["compute_ms"] = (round(seconds * 1e3, 3) for seconds in split)
        arrays = job.future.result()
        binary = all(as_binary for _, as_binary in parsed.outputs)
        # The inputs are no longer needed; the response is held until it is sent.
        parsed.inputs.clear()
        del body, read, job
        lease.resize(bounded_json.response_size(arrays, binary))
        write = partial(encode, model, found.version.name, parsed, arrays, found.signature)
        content, head = await state.call(write, bounded_json.is_small_response(arrays, binary))
        lease.resize(len(content))
        status = 200
        if head is None:
            return Response(content, media_type="application/json")
        headers = {HEADER_LENGTH: str(head)}
        return Response(content, media_type="application/octet-stream", headers=headers)
    except RequestError as error:
        status = error.status
        if isinstance(error, BudgetExceededError):
            state.metrics.count_refusal("memory")
        raise
    except MemoryError:
        status = 503
        raise InsufficientMemoryError from None
    except asyncio.CancelledError:
        status = 503  # as the guard answers when the server stops before the request is done
        raise
    finally:
        if found is not None:
            log["model"], log["version"] = model, found.version.name
            seconds = time.perf_counter() - start
            state.metrics.count_response(model, found.version.name, status, seconds, split)


async def _run(
    state: ServerState, model: LoadedModel, version: str | None, parsed: InferRequest
) -> tuple[LoadedModel, Job]:
    """Run the request; if the model is replaced meanwhile, on its successor."""
    outputs = [name for name, _ in parsed.outputs]
    while True:
        try:
            job = model.scheduler.run_inline_if_short(parsed.inputs, outputs)
            if job is not None:
                return model, job
            job = model.scheduler.submit(parsed.inputs, outputs)
        except SchedulerClosedError:
            signature = model.signature
            model = state.repository.find(model.name, version)
            if model.signature != signature:
                raise RequestError(
                    "the model was replaced by one with different inputs or outputs; try again", 409
                ) from None
            continue
        try:
            await asyncio.wait_for(asyncio.wrap_future(job.future), state.settings.timeout)
        except TimeoutError:
            raise model.scheduler.abandon(job) from None
        return model, job


def _only_ready(body: bytes | bytearray) -> bool:
    only = _small_object(body).get("ready", False)
    if not isinstance(only, bool):
        raise RequestError("ready is not a boolean")
    return only


def _refuse_contents(body: bytes | bytearray) -> None:
    """Refuse the protocol's option to upload a model's files or configuration."""
    for name, value in (_small_object(body).get("parameters") or {}).items():
        if value and (name == "config" or name.startswith("file:")):
            raise RequestError(
                f"the parameter '{name[:100]}' is not supported: the server loads models only from "
                "the files that it was started with"
            )


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
