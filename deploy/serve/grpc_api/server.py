"""The gRPC server of one process, on the event loop of its HTTP server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from ..settings import SettingsError
from .calls import SURPLUS, Calls

if TYPE_CHECKING:
    from ..state import ServerState

_IDLE_SECONDS = 75  # as HTTP's connections
# A client that does not answer a ping in time is gone.
_PING_SECONDS, _PONG_SECONDS = 60, 20
# A connection ends after this, and its pending calls a while later: the only bound on a client that
# does not read its answer. Clients connect again by themselves.
_AGE_SECONDS = 300
_MAX_METADATA = 1 << 14
_MAX_MESSAGE = (1 << 31) - 1  # of protobuf, and of grpc's options


class GrpcServer:
    """Listens beside HTTP, with the same limits, models and metrics."""

    def __init__(self, state: ServerState):
        self._calls = Calls(state)
        settings = state.settings
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.max_connections + SURPLUS,
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", min(settings.max_body, _MAX_MESSAGE)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", settings.max_connections),
                ("grpc.max_allowed_incoming_connections", settings.max_connections),
                ("grpc.max_metadata_size", _MAX_METADATA),
                ("grpc.absolute_max_metadata_size", _MAX_METADATA),
                ("grpc.server_handshake_timeout_ms", round(settings.timeout * 1000)),
                ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
                ("grpc.max_connection_age_ms", _AGE_SECONDS * 1000),
                # for the message, the run, and the answer
                ("grpc.max_connection_age_grace_ms", round(3 * settings.timeout * 1000)),
                ("grpc.keepalive_time_ms", _PING_SECONDS * 1000),
                ("grpc.keepalive_timeout_ms", _PONG_SECONDS * 1000),
            ],
        )
        self._server.add_generic_rpc_handlers(self._calls.handlers())

    async def start(self, host: str, port: int) -> None:
        """Listen on a port that ``reserved`` holds."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """Accept nothing more, finish pending calls for at most ``seconds``, cut off the rest."""
        await self._server.stop(seconds)

    async def cut_off(self) -> None:
        """Answer all calls with UNAVAILABLE."""
        await self._calls.cut_off()


@contextlib.contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Hold a port for gRPC while this process or its workers serve, and yield its number.

    grpc takes no open socket, so each worker opens its own (SO_REUSEPORT), and the kernel spreads
    connections over them. Without this check, a second server would share the port of a first one.

    Raises:
        SettingsError: If the port is taken or the address is not this machine's.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            port = probe.getsockname()[1]
        holder = socket.socket(family, socket.SOCK_STREAM)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind((host, port))
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host} port {port} for gRPC: {error.strerror or error}"
        ) from error
    with holder:
        yield port
