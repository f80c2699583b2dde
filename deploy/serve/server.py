"""Run the app: one process, or a supervisor with several workers. Needs the extra ``[serve]``."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from ..errors import SessionError
from ..shortage import is_shortage
from .app import create_app
from .connection import Limits, connection_class
from .logs import configure_logging, event
from .memory import map_large_blocks
from .native_lines import native_lines_as_events
from .settings import TOKEN_VARIABLE, ServeSettings, SettingsError
from .state import ServerState
from .supervisor import CANNOT_START, CANNOT_START_NOW, supervise

_log = logging.getLogger("fanin.serve")

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(settings: ServeSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Raises SettingsError when the address cannot be bound. A model that does not open ends it with
    status 1 and the reason in the log; one that found too little memory, descriptors or disk space,
    with status 75.
    """
    configure_logging(settings.log_format)
    listener = bind(settings)
    if settings.host not in LOOPBACK and settings.token is None:
        event(
            _log,
            "everyone who reaches this address can use the server",
            logging.WARNING,
            host=settings.host,
            remedy=f"set {TOKEN_VARIABLE}, or listen on 127.0.0.1",
        )
    if settings.workers > 1:
        return supervise(settings, listener)
    return run_worker(settings, listener)


def bind(settings: ServeSettings) -> socket.socket:
    """Open the listening socket. Raises SettingsError when that fails."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}"
        ) from error
    return listener


@native_lines_as_events()
def run_worker(settings: ServeSettings, listener: socket.socket) -> int:
    """Serve on an open socket in this process; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)  # until the server takes them: it is not serving yet
    map_large_blocks()
    state: ServerState | None = None
    try:
        app = create_app(settings)
        state = app.state.fanin
        state.open()
    except (SessionError, OSError, MemoryError) as error:
        event(_log, "cannot start", logging.ERROR, reason=str(error).strip() or repr(error))
        if state is not None:
            state.close()
        return CANNOT_START_NOW if is_shortage(error) else CANNOT_START
    # Modules and models live as long as the process: collecting garbage need not walk them.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=connection_class(_limits(state)),
        timeout_graceful_shutdown=settings.drain_timeout,  # type: ignore[arg-type]
        timeout_keep_alive=75,
    )
    _Server(config, state).run([listener])
    event(_log, "stopped", pid=os.getpid())
    return 0


def _limits(state: ServerState) -> Limits:
    settings, metrics = state.settings, state.metrics
    return Limits(
        timeout=settings.timeout,
        connections=settings.max_connections,
        body=settings.max_body,
        budget=state.budget,
        refused=metrics.refused,
        counted=metrics.connections.inc,
    )


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


class _Server(uvicorn.Server):
    """uvicorn's server with a drain: on SIGTERM it first says that it is not ready, and goes on.

    A load balancer stops sending meanwhile, and every answer closes its connection, so that no
    request is on its way on a connection that is about to be closed.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState):
        super().__init__(config)
        self._state = state

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where it serves, once it does and signals reach it."""
        await super().startup(sockets)
        assert sockets is not None
        host, port = sockets[0].getsockname()[:2]
        event(
            _log,
            "serving",
            address=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
            models=", ".join(self._state.settings.names),
            pid=os.getpid(),
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain; on SIGINT, or at the next signal, stop accepting; at one more, end."""
        wait = self._state.settings.drain_delay
        if sig == signal.SIGTERM and wait and not self._state.draining:
            self._state.draining = True
            event(_log, "draining", seconds=wait, pid=os.getpid())
            asyncio.get_running_loop().call_later(wait, self._stop)
            return
        self._state.draining = True
        if self.should_exit:
            # Threadsafe: it wakes the loop, which may be waiting for the last runs of sessions.
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(lambda: loop.create_task(self._cut_off()))
        self.should_exit = True

    def _stop(self) -> None:
        self.should_exit = True

    async def _cut_off(self) -> None:
        """Answer all requests with 503 and end the process: a run cannot be interrupted."""
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        event(_log, "stopped", pid=os.getpid(), cut_off=len(tasks))
        os._exit(0)


def main() -> None:
    """Entry point of a worker process: settings on stdin, the socket as a file descriptor."""
    settings = ServeSettings.from_json(sys.stdin.read())
    configure_logging(settings.log_format)
    sys.exit(run_worker(settings, socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
