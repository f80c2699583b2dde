"""Errors with which the server answers a request."""

from __future__ import annotations

import json


def error_body(status: int, message: str) -> tuple[bytes, dict[str, str]]:
    """Return the body of an error response and its headers."""
    # ASCII, because the message may quote a lone surrogate, which UTF-8 cannot encode.
    body = json.dumps({"error": message}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 503:
        headers["retry-after"] = "1"
    return body, headers


class RequestError(Exception):
    """A request that cannot be served; carries the HTTP status and a sentence for the client."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class QueueFullError(RequestError):
    """The model's queue is at its limit."""

    def __init__(self, name: str, limit: int):
        super().__init__(
            f"the queue of model '{name}' is full ({limit} requests wait); try again later", 503
        )


class RequestTimeoutError(RequestError):
    """The request waited or ran longer than the server allows."""

    def __init__(self, seconds: float, state: str):
        super().__init__(f"the request timed out after {seconds:g} s ({state})", 504)


class InsufficientMemoryError(RequestError):
    """The process has no memory for this request at the moment."""

    def __init__(self, reason: str = ""):
        detail = f" ({reason})" if reason else ""
        super().__init__(f"not enough memory for these inputs{detail}; try again later", 503)


class BudgetExceededError(RequestError):
    """Other requests and responses use the whole buffer budget."""

    def __init__(self) -> None:
        super().__init__(
            "the server's buffer for requests and responses is full; try again later", 503
        )


class SchedulerClosedError(Exception):
    """The model was replaced or unloaded between lookup and submission: look it up again."""
