"""Run the app: one process, or a supervisor with several workers. Needs the extra ``[serve]``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ..errors import SessionError
from ..shortage import is_shortage
from . import shared_folder
from .connection import Limits, connection_class
from .logs import configure_logging, event
from .memory import map_large_blocks
from .native_lines import native_lines_as_events
from .parent import Lifeline, signal_at_parents_end
from .settings import TOKEN_VARIABLE, ServeSettings, SettingsError
from .signals import DRAINING, on_stop
from .supervisor import CANNOT_START, CANNOT_START_NOW, supervise

if TYPE_CHECKING:
    from .state import ServerState

_log = logging.getLogger("fanin.serve")

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_CUT_OFF = 1.0  # seconds in which what is cut off is still answered


def serve(settings: ServeSettings) -> int:
    """Serve until a signal stops it; returns the exit status.

    Raises SettingsError when the address cannot be bound. A model that does not open ends it with
    status 1 and the reason in the log; one that found too little memory, descriptors or disk space,
    with status 75.
    """
    on_stop(_end)  # until those are ready that know how
    configure_logging(settings.log_format)
    shared_folder.forget_inherited()
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
def run_worker(
    settings: ServeSettings, listener: socket.socket, lifeline: Lifeline | None = None
) -> int:
    """Serve on an open socket in this process; returns the exit status.

    With a lifeline the process is a worker, which ends with its supervisor.
    """
    on_stop(_end)  # until the server takes them: it is not serving yet
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
        refused=metrics.refused,
        counted=metrics.connections.inc,
    )


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _end_without_supervisor(serving: list[_Server]) -> None:
    """End at once, so that a new server finds the port free: nobody else would end this one."""
    event(_log, "the supervisor is gone", logging.ERROR, pid=os.getpid())
    for server in serving:
        server.cut_off_from_outside()
    folder = shared_folder.current()
    if folder is not None:  # all workers do so: what one still writes, the last one removes
        shared_folder.remove(folder)
    os._exit(CANNOT_START)


class _Server(uvicorn.Server):
    """uvicorn's server with a drain: it first says that it is not ready, and goes on.

    A load balancer stops sending meanwhile, and every answer closes its connection, so that no
    request is on its way on a connection that is about to be closed.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState):
        super().__init__(config)
        self._state = state
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where it serves, once it does and signals reach it."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        on_stop(self.handle_exit)  # uvicorn itself takes two of them
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
        """Begin to drain; on SIGINT or SIGQUIT, or the next signal, stop accepting; then end."""
        wait = self._state.settings.drain_delay
        if sig in DRAINING and wait and not self._state.draining:
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
        await self._cancel_requests()
        os._exit(0)

    def cut_off_from_outside(self) -> None:
        """Answer all requests with 503, called on another thread than the loop's."""
        if self._loop is not None:
            told = asyncio.run_coroutine_threadsafe(self._cancel_requests(), self._loop)
            with contextlib.suppress(Exception):  # a loop that is busy or closed: end all the same
                told.result(_CUT_OFF + 0.2)

    async def _cancel_requests(self) -> None:
        self._state.draining = True
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CUT_OFF)
        event(_log, "stopped", pid=os.getpid(), cut_off=len(tasks))


def main() -> None:
    """Entry point of a worker: settings on stdin, descriptors of the socket and the lifeline."""
    signal_at_parents_end(signal.SIGCONT)  # one that is stopped must see its supervisor's end, too
    text = sys.stdin.read()
    if not text:  # the supervisor ended before it could write them
        _end_without_supervisor([])
    settings = ServeSettings.from_json(text)
    configure_logging(settings.log_format)
    listener, lifeline = map(int, sys.argv[1:])
    sys.exit(run_worker(settings, socket.socket(fileno=listener), Lifeline(lifeline)))


if __name__ == "__main__":
    main()
