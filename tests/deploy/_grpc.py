"""Helpers for tests of gRPC: a server in this process, and calls below tritonclient's level."""

import asyncio
import threading

import grpc

from .._waiting import PATIENCE

SERVICE = "/inference.GRPCInferenceService"


class GrpcServing:
    """A server of these settings on a free port, on an event loop of its own thread."""

    def __init__(self, settings):
        from fanin.deploy.serve.grpc_api.server import GrpcServer, reserved
        from fanin.deploy.serve.state import ServerState

        self.state = ServerState(settings)
        self.state.open()
        self._reserved = reserved("127.0.0.1", 0)
        self.port = self._reserved.__enter__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = self.run(self._start(GrpcServer))

    async def _start(self, kind):
        server = kind(self.state)
        await server.start("127.0.0.1", self.port)
        return server

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def metric(self, name, **labels):
        for line in self.state.metrics.text().decode().splitlines():
            head, _, value = line.rpartition(" ")
            if head.startswith(name) and all(f'{k}="{v}"' in head for k, v in labels.items()):
                return float(value)
        return None

    def call(self, method, body=b"", metadata=(), timeout=PATIENCE, **options):
        """Call a method with the bytes of a message; return the bytes of the response."""
        path = method if method.startswith("/") else f"{SERVICE}/{method}"
        with grpc.insecure_channel(self.address, list(options.items())) as channel:
            return channel.unary_unary(path)(body, timeout=timeout, metadata=metadata)

    def close(self):
        self.run(self.server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.state.close()
        self._reserved.__exit__(None, None, None)


def request_of(array, raw=True, **more):
    """A request for m, with x in raw or in typed contents."""
    from fanin.deploy.serve.grpc_api.messages import MESSAGES

    request = MESSAGES["ModelInferRequest"](model_name="m", **more)
    entry = request.inputs.add(name="x", datatype="FP32", shape=array.shape)
    if raw:
        request.raw_input_contents.append(array.tobytes())
    else:
        entry.contents.fp32_contents.extend(array.ravel().tolist())
    return request


def code_of(function, *arguments, **more):
    """Return the status with which a call fails, and its text."""
    try:
        function(*arguments, **more)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""
