"""What holds for every route: HEAD is answered like GET, and the path may end in a slash.

The protocol's own description writes ``/v2/``. A redirect to the path without the slash would name
the host that the client named, and many clients do not repeat a POST.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from .guard import App, Receive, Scope, Send


class RouteForms:
    """Wraps the routes, each of which is declared once, for GET or POST and without the slash."""

    def __init__(self, app: App):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on in the form that its route has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            scope.setdefault("fanin", {})  # what the route tells the log, shared with the copy
            scope = {**scope, "path": path[:-1]}
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
