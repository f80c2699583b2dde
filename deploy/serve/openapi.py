"""OpenAPI descriptions of requests and responses, and a page of the routes without scripts."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .datatypes import NUMPY

_Responses = dict[int | str, dict[str, Any]]

_NAME = {"type": "string", "minLength": 1}
_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_DATATYPE = {"type": "string", "enum": list(NUMPY)}


def _object(required: tuple[str, ...], more: bool = False, **properties: Any) -> dict[str, Any]:
    """Describe an object; ``more`` allows unknown keys, which are ignored."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": more,
    }


REQUEST = _object(
    ("inputs",),
    more=True,
    id={"type": "string"},
    parameters=_object((), more=True, binary_data_output={"type": "boolean"}),
    inputs={
        "type": "array",
        "items": _object(
            ("name", "shape", "datatype"),
            more=True,
            name=_NAME,
            shape=_SHAPE,
            datatype=_DATATYPE,
            parameters=_object((), more=True, binary_data_size={"type": "integer", "minimum": 0}),
            data={"type": "array", "description": "Row-major, flat or nested as the shape is."},
        ),
    },
    outputs={
        "type": "array",
        "items": _object(
            ("name",),
            more=True,
            name=_NAME,
            parameters=_object((), more=True, binary_data={"type": "boolean"}),
        ),
    },
)

RESPONSE = _object(
    ("model_name", "model_version", "outputs"),
    model_name=_NAME,
    model_version=_NAME,
    id={"type": "string"},
    outputs={
        "type": "array",
        "items": _object(
            ("name", "shape", "datatype"),
            name=_NAME,
            shape=_SHAPE,
            datatype=_DATATYPE,
            parameters=_object((), binary_data_size={"type": "integer", "minimum": 0}),
            data={"type": "array"},
        ),
    },
)

_REASON = {"type": "string"}
ERROR = _object(("error",), error=_REASON)

_BINARY = {"type": "string", "format": "binary"}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(descriptions: Mapping[int | str, str]) -> _Responses:
    return {status: _json(text, ERROR) for status, text in descriptions.items()}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}, "application/octet-stream": {"schema": _BINARY}}


def names_in(path: str, models: Sequence[str]) -> dict[str, Any]:
    """Describe the parameters in a path; ``models`` are all names, or empty if they may change."""
    schemas = {
        "model": {"type": "string", **({"enum": list(models)} if models else {})},
        "version": {"type": "string", "pattern": "^[1-9][0-9]*$"},
    }
    return {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": schemas[name]}
            for name in re.findall(r"{(\w+)}", path)
        ]
    }


def infer_in(path: str, models: Sequence[str]) -> dict[str, Any]:
    """Describe an infer request at this path."""
    length = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "required": False,
        "schema": {"type": "integer", "minimum": 0},
    }
    return {
        "requestBody": {
            "required": True,
            "description": "JSON; or, with the header Inference-Header-Content-Length, JSON of "
            "that length followed by the tensors' bytes. If the header is 0, only the bytes of "
            "the model's single input.",
            "content": _content(REQUEST),
        },
        "parameters": [*names_in(path, models)["parameters"], length],
    }


INFER_RESPONSES: _Responses = {
    200: {"description": "The outputs", "content": _content(RESPONSE)},
    **_errors(
        {
            400: "The request violates the protocol or does not fit the model",
            404: "No such model or version",
            408: "The body did not arrive in time",
            409: "The model was replaced meanwhile by one with different inputs or outputs",
            413: "The body is too large",
            415: "Unsupported content encoding",
            422: "An output holds NaN or infinity, which JSON cannot express",
            503: "The queue or the server's buffer is full",
            504: "The request timed out",
        }
    ),
}

ERRORS = _errors({400: "The model does not load", 404: "No such model or version"})


def _flags(description: str, *names: str, **more: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {**more, **{name: {"type": "boolean"} for name in names}}
    schema = _object(tuple(properties), **properties)
    return _json(description, schema)


LIVE: _Responses = {200: _flags("The process is alive", "live")}
READY: _Responses = {
    200: _flags("Every model is being served", "ready"),
    503: _flags("A model is not served, or the server is shutting down", "ready", error=_REASON),
}
MODEL_READY: _Responses = {
    200: _flags("The model is being served", "ready", name=_NAME),
    404: ERRORS[404],
    503: _flags("The model is not loaded", "ready", name=_NAME, error=_REASON),
}


def page(schema: dict[str, Any]) -> str:
    """List the routes as plain HTML, since a serving machine may not reach a script host."""
    rows = [
        f"<tr><td><code>{method.upper()}</code></td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('description') or operation.get('summary', ''))}</td></tr>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    title = html.escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><p>Open Inference Protocol V2. "
        '<a href="/openapi.json">openapi.json</a></p>'
        f"<table>{''.join(rows)}</table></html>"
    )
