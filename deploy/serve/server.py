"""Runs the app: in one process, or in several under a supervisor. Needs the extra ``[serve]``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ..errors import SessionError
from ..transient import is_transient
from . import shared_folder
from .connection import Limits, connection_class
from .logs import configure_logging, event
from .memory import map_large_blocks
from .parent_exit import Lifeline, signal_on_parent_exit
from .settings import TOKEN_VARIABLE, ServeSettings, SettingsError
from .signals import DRAINING, on_stop
from .stderr_capture import stderr_as_events
from .supervisor import EXIT_FAILED, EXIT_TEMPFAIL, supervise

if TYPE_CHECKING:
    from .grpc_api.server import GrpcServer
    from .state import ServerState

_log = logging.getLogger("fanin.serve")

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_CUT_OFF = 1.0  # seconds for interrupted requests to be answered


def serve(settings: ServeSettings) -> int:
    """Serve until a signal stops the server.

    Args:
        settings: All options.

    Returns:
        The exit status: 0 after a signal, 1 if a model does not open (the log has the reason), 75
        if that was a transient failure, such as too little memory.

    Raises:
        SettingsError: If the address cannot be bound, or OpenTelemetry's variables ask in vain.

    """
    on_stop(_end)  # until the server or supervisor installs its own handlers
    configure_logging(settings.log_format)
    shared_folder.forget_inherited()
    if settings.otel:
        from .otel import require_supported  # needs an extra of its own

        require_supported()
    listener = bind(settings)
    if settings.host not in LOOPBACK and settings.token is None:
        event(
            _log,
            "no token is set",
            logging.WARNING,
            host=settings.host,
            remedy=f"anyone who reaches this address can use the server: set {TOKEN_VARIABLE}, or "
            "listen on 127.0.0.1 only",
        )
    run = supervise if settings.workers > 1 else run_worker
    if settings.grpc_port is None:
        return run(settings, listener)
    from .grpc_api.server import reserved  # needs an extra of its own

    with reserved(settings.host, settings.grpc_port) as port:
        return run(replace(settings, grpc_port=port), listener)


def bind(settings: ServeSettings) -> socket.socket:
    """Open the listening socket; SettingsError if that fails."""
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


@stderr_as_events()
def run_worker(
    settings: ServeSettings, listener: socket.socket, lifeline: Lifeline | None = None
) -> int:
    """Serve on an open socket in this process.

    Args:
        settings: All options.
        listener: The listening socket.
        lifeline: Given to a worker, which ends with its supervisor.

    Returns:
        The exit status, as ``serve`` does.

    """
    on_stop(_end)  # until the server installs its own handlers
    serving: list[_Server] = []
    if lifeline is not None:
        lifeline.watch(lambda: _end_without_supervisor(serving))
    from .app import create_app  # here, as it imports prometheus_client: see forget_inherited

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
        return EXIT_TEMPFAIL if is_transient(error) else EXIT_FAILED
    # Modules and models live as long as the process, so the garbage collector may skip them.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,  # uvicorn's is of the request's head; the connection writes the answer's
        proxy_headers=False,
        ws="none",
        http=connection_class(_limits(state)),
        timeout_graceful_shutdown=settings.drain_timeout,  # type: ignore[arg-type]
        timeout_keep_alive=75,
    )
    server = _Server(config, state)
    serving.append(server)
    server.run([listener])
    event(_log, "stopped", pid=os.getpid())
    return 0


def _limits(state: ServerState) -> Limits:
    settings, metrics = state.settings, state.metrics
    return Limits(
        timeout=settings.timeout,
        connections=settings.max_connections,
        body=settings.max_body,
        budget=state.budget,
        on_refusal=metrics.count_refusal,
        on_count_change=metrics.connections.inc,
    )


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _end_without_supervisor(serving: list[_Server]) -> None:
    """End at once, since nobody else would, so that a new server finds the port free."""
    event(_log, "supervisor exited", logging.ERROR, pid=os.getpid())
    for server in serving:
        server.cut_off_from_outside()
    folder = shared_folder.current()
    if folder is not None:  # all workers do so: what one still writes, the last one removes
        shared_folder.remove(folder)
    os._exit(EXIT_FAILED)


class _Server(uvicorn.Server):
    """uvicorn's server with a drain phase, in which it reports "not ready" but still serves.

    Load balancers stop sending meanwhile, and every response closes its connection. So no request
    is in flight on a connection that is about to be closed.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState):
        super().__init__(config)
        self._state = state
        self._grpc: GrpcServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Log the address once the server accepts requests and handles signals."""
        await super().startup(sockets)
        assert sockets is not None
        host, port = sockets[0].getsockname()[:2]
        await self._start_grpc(host)
        self._loop = asyncio.get_running_loop()
        on_stop(self.handle_exit)  # uvicorn handles only SIGINT and SIGTERM
        event(
            _log,
            "serving",
            address=f"http://{_bracketed(host)}:{port}",
            grpc=f"{_bracketed(host)}:{self._state.settings.grpc_port}" if self._grpc else None,
            models=", ".join(self._state.repository.names()),
            pid=os.getpid(),
        )

    async def _start_grpc(self, address: str) -> None:
        """Listen on HTTP's address: of a name, gRPC would take addresses that are not reserved."""
        port = self._state.settings.grpc_port
        if port is None:
            return
        from .grpc_api.server import GrpcServer

        self._grpc = GrpcServer(self._state)
        await self._grpc.start(address, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish pending requests of both protocols at the same time."""
        if self._grpc is not None:
            ending = self._grpc.stop(self._state.settings.drain_timeout)
            self._state.others.append(asyncio.create_task(ending))
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start to drain; on SIGINT, SIGQUIT or a second signal, stop accepting and finish."""
        wait = self._state.settings.drain_delay
        if sig in DRAINING and wait and not self._state.draining:
            self._state.draining = True
            event(_log, "draining", seconds=wait, pid=os.getpid())
            asyncio.get_running_loop().call_later(wait, self._stop)
            return
        self._state.draining = True
        if self.should_exit:
            # Thread-safe, because it wakes the loop, which may be waiting for the last runs.
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(lambda: loop.create_task(self._cut_off()))
        self.should_exit = True

    def _stop(self) -> None:
        self.should_exit = True

    async def _cut_off(self) -> None:
        """Answer all requests with 503 and end the process, since runs cannot be interrupted."""
        await self._cancel_requests()
        os._exit(0)

    def cut_off_from_outside(self) -> None:
        """Answer all requests with 503; called from another thread."""
        if self._loop is not None:
            cancelled = asyncio.run_coroutine_threadsafe(self._cancel_requests(), self._loop)
            with contextlib.suppress(Exception):  # a loop that is busy or closed: end all the same
                cancelled.result(_CUT_OFF + 0.2)

    async def _cancel_requests(self) -> None:
        self._state.draining = True
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        over_grpc = asyncio.create_task(self._grpc.cut_off()) if self._grpc else None
        if tasks:
            await asyncio.wait(tasks, timeout=_CUT_OFF)
        if over_grpc is not None:
            await over_grpc
        event(_log, "stopped", pid=os.getpid(), cut_off=len(tasks))


def _bracketed(host: str) -> str:
    """Return a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def main() -> None:
    """Run a worker: settings come on stdin, the socket's and lifeline's descriptors in argv."""
    signal_on_parent_exit(signal.SIGCONT)  # a stopped worker must notice its supervisor's exit, too
    text = sys.stdin.read()
    if not text:  # the supervisor ended before it could write them
        _end_without_supervisor([])
    settings = ServeSettings.from_json(text)
    configure_logging(settings.log_format)
    listener, lifeline = map(int, sys.argv[1:])
    sys.exit(run_worker(settings, socket.socket(fileno=listener), Lifeline(lifeline)))


if __name__ == "__main__":
    main()
