"""The methods of ``inference.GRPCInferenceService`` and ``grpc.health.v1.Health``.

Every method is a function from a request's bytes to the response's; ``calls`` bounds and guards it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from .. import bounded_json
from ..errors import RequestError
from ..inference import InferCall
from ..operations import SHARED_MEMORY, Operations
from .call import Call
from .codec import decode, encode, is_small, read_message
from .messages import DATATYPES, HEALTH_MESSAGES, KIND_CPU, MESSAGES

if TYPE_CHECKING:
    from ..state import ServerState

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

_SERVING, _NOT_SERVING = 1, 2  # HealthCheckResponse.ServingStatus

_STREAMING = "streaming is not supported: call ModelInfer once for each request"
_UNSUPPORTED = {
    f"/{SERVICE}/ModelStreamInfer": _STREAMING,
    f"/{HEALTH}/Watch": "watching is not supported: call Check again when needed",
    **{
        f"/{SERVICE}/{kind}SharedMemory{action}": SHARED_MEMORY
        for kind in ("System", "Cuda")
        for action in ("Status", "Register", "Unregister")
    },
    f"/{SERVICE}/TraceSetting": "trace settings are not supported: start the server with --otel",
    f"/{SERVICE}/LogSettings": "log settings are not supported: start the server with --access-log",
}

# For probes of an orchestrator, which carry no token.
OPEN = (f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady", f"/{HEALTH}/Check")
# Answered without reading the message. It has no fields or, with Check, names a service: all have
# the same health. Messages that arrive without a token would take the place of others.
UNREAD = (*OPEN, f"/{SERVICE}/ServerMetadata")

Method = Callable[[Call], Awaitable[bytes]]


class Service:
    """The methods, by their full names."""

    def __init__(self, state: ServerState):
        self._state = state
        self._operations = Operations(state)
        plain = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        self.methods: dict[str, Method] = {
            **{
                f"/{SERVICE}/{name}": partial(_answer, MESSAGES, name, function)
                for name, function in plain.items()
            },
            f"/{SERVICE}/ModelInfer": self._infer,
            f"/{HEALTH}/Check": self._check,
            **{path: partial(_refuse, reason) for path, reason in _UNSUPPORTED.items()},
        }

    async def _live(self, _request: Any) -> dict[str, Any]:
        return {"live": True}

    async def _ready(self, _request: Any) -> dict[str, Any]:
        return {"ready": self._operations.why_not_ready() is None}

    async def _server_metadata(self, _request: Any) -> dict[str, Any]:
        return self._operations.server_metadata()

    async def _model_ready(self, request: Any) -> dict[str, Any]:
        version = request.version or None
        return {"ready": self._operations.why_model_not_ready(request.name, version) is None}

    async def _model_metadata(self, request: Any) -> dict[str, Any]:
        return self._operations.model_metadata(request.name, request.version or None)

    async def _model_config(self, request: Any) -> dict[str, Any]:
        config = self._operations.model_config(request.name, request.version or None)
        for tensor in (*config["input"], *config["output"]):
            tensor["data_type"] = DATATYPES[tensor["data_type"].removeprefix("TYPE_")]
        for group in config["instance_group"]:
            group["kind"] = KIND_CPU
        return {"config": config}

    async def _statistics(self, request: Any) -> dict[str, Any]:
        return await self._operations.statistics(request.name or None, request.version or None)

    async def _index(self, request: Any) -> dict[str, Any]:
        return {"models": self._operations.index(request.ready)}

    async def _load(self, request: Any) -> dict[str, Any]:
        await self._operations.load(request.model_name, _repository_parameters(request))
        return {}

    async def _unload(self, request: Any) -> dict[str, Any]:
        await self._operations.unload(request.model_name, _repository_parameters(request))
        return {}

    async def _check(self, _call: Call) -> bytes:
        ready = self._operations.why_not_ready() is None
        return _serialized(
            HEALTH_MESSAGES["HealthCheckResponse"](status=_SERVING if ready else _NOT_SERVING)
        )

    async def _infer(self, call: Call) -> bytes:
        settings = self._state.settings
        with InferCall(self._state, "grpc", call.log, call.trace) as infer:
            body = call.take_body()
            small = is_small(body)
            read = partial(read_message, body, call.lease.take)
            message = await infer.decode(read, small)
            found = infer.find(message.head.model_name, message.head.model_version or None)
            to_request = partial(
                decode, message, found.signature, settings.max_dimension, settings.min_dimension
            )
            parsed = await infer.decode(to_request, small)
            del body, message, read, to_request
            arrays = await infer.run(parsed, call.seconds_left())
            raw = all(as_raw for _, as_raw in parsed.outputs)
            parsed.inputs.clear()
            call.lease.resize(bounded_json.response_size(arrays, raw))
            write = partial(encode, found.name, infer.version, parsed, arrays, found.signature)
            small = bounded_json.is_small_response(arrays, raw)
            return await infer.encode(write, small)


async def _answer(
    messages: dict[str, type[Any]],
    name: str,
    function: Callable[[Any], Awaitable[dict[str, Any]]],
    call: Call,
) -> bytes:
    # The class is absent for requests without fields.
    kind = messages.get(f"{name}Request")
    values = await function(_parsed(kind, call.take_body()) if kind else None)
    response = messages[f"{name}Response"]()
    return _serialized(json_format.ParseDict(values, response))


async def _refuse(reason: str, _call: Call) -> bytes:
    raise RequestError(reason, 501)


def _parsed(kind: type[Any], body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise RequestError(f"the message is not a {kind.DESCRIPTOR.name}") from None


def _serialized(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _repository_parameters(request: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in request.parameters.items()
    }
