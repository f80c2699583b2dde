"""Route aliases: HEAD works wherever GET does, and every path may end in a slash.

The protocol's specification writes ``/v2/``. Redirecting to the path without the slash would expose
the client's Host header, and many clients do not repeat a POST.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from .guard import App, Receive, Scope, Send


class RouteAliases:
    """Wraps the routes, which are declared once: for GET or POST, without a trailing slash."""

    def __init__(self, app: App):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request in the form in which its route is declared."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            scope.setdefault("fanin", {})  # log fields set by the route, shared with the copy
            scope = {**scope, "path": path[:-1]}
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
