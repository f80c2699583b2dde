"""Helpers for tests of the server: models, requests, an app without a socket, a server process."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .._waiting import PATIENCE, wait_until

HEADER = "Inference-Header-Content-Length"


def gain_model(gain, width=4):
    """y = gain · x, float32, symbolic batch: its response tells which file was loaded."""
    weight = numpy_helper.from_array(np.full(width, gain, np.float32), "gain")
    return _model([helper.make_node("Mul", ["x", "gain"], ["y"])], [weight], ["batch", width])


def slow_model(rounds, size=512):
    """A chain of square matrix products, each of about a millisecond."""
    weight = numpy_helper.from_array(np.eye(size, dtype=np.float32), "w")
    names = ["x", *(f"h{number}" for number in range(rounds - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [name, "w"], [following])
        for name, following in itertools.pairwise(names)
    ]
    return _model(nodes, [weight], [size, size])


def wide_model(width, out):
    """y[n, out] from x[n, width]: small requests with large answers."""
    weight = numpy_helper.from_array(np.ones((width, out), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return _model([node], [weight], ["batch", width], ["batch", out])


def _model(nodes, initializers, shape, out=None):
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in (("x", shape), ("y", out or shape))
    ]
    graph = helper.make_graph(nodes, "test", tensors[:1], tensors[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def save(model, path):
    """Write under another name, then rename, as users should."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    onnx.save(model, beside)
    beside.rename(path)
    return path


def json_body(x, name="x", datatype="FP32", **more):
    entry = {"name": name, "shape": list(x.shape), "datatype": datatype, "data": x.tolist()}
    return json.dumps({"inputs": [entry], **more}).encode()


def binary_body(x, name="x", datatype="FP32"):
    """A body with a binary tensor after its JSON, and the headers for it."""
    entry = {
        "name": name,
        "shape": list(x.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": x.nbytes},
    }
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return head + x.tobytes(), {HEADER: str(len(head))}


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def array(self, name="y"):
        """An output, decoded from JSON or binary data."""
        if HEADER.lower() not in self.headers:
            output = next(item for item in self.json["outputs"] if item["name"] == name)
            return np.array(output["data"]).reshape(output["shape"])
        end = int(self.headers[HEADER.lower()])
        at = end
        for output in json.loads(self.body[:end])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            if output["name"] == name:
                return np.frombuffer(self.body[at : at + size], "<f4").reshape(output["shape"])
            at += size
        raise AssertionError(f"no output {name}")


async def ask(app, method, path, body=b"", headers=None, chunks=None, unfinished=False):
    """Send a request to an ASGI app without a socket; an unfinished body never ends."""
    sent = []
    parts = [body] if chunks is None else list(chunks)
    messages = [
        {"type": "http.request", "body": part, "more_body": unfinished or number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]

    async def receive():
        if messages:
            return messages.pop(0)
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    path, _, query = path.partition("?")
    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": raw,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "scheme": "http",
        },
        receive,
        send,
    )
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) == 1
    headers = {name.decode().lower(): value.decode() for name, value in starts[0]["headers"]}
    return Answer(
        starts[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)
    )


def get(app, path, **more):
    return asyncio.run(ask(app, "GET", path, **more))


def post(app, path, body=b"", headers=None, **more):
    return asyncio.run(ask(app, "POST", path, body, headers, **more))


class Server:
    """A `fanin serve` process on a free port: ready once entered, stopped on exit."""

    def __init__(self, *arguments, env=None, log=None, wait=PATIENCE):
        self.log = log
        self._wait = wait
        # No trials (half a second each) unless a test asks for them: the last option counts.
        options = ["--port", "0", "--trial-timeout", "0"]
        command = [sys.executable, "-m", "fanin", "serve", *options, *map(str, arguments)]
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stderr=stderr,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )

    def __enter__(self):
        end = time.monotonic() + self._wait
        while time.monotonic() < end and self.process.poll() is None:
            found = [event for event in self.events() if event["event"] == "serving"]
            if found:
                self.port = int(re.search(r":(\d+)$", found[0]["address"])[1])
                return self
            time.sleep(0.05)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def events(self, name=None):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        events = []
        for line in lines:
            with contextlib.suppress(ValueError):  # another kind of warning, or a truncated line
                events.append(json.loads(line))
        return [event for event in events if name in (None, event["event"])]

    def wait_for(self, name, count=1, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.events(name)
            if len(found) >= count:
                return found
            time.sleep(0.05)
        raise AssertionError(f"no event '{name}':\n{self.log.read_text()}")

    def connect(self, window=None):
        """Open a connection; ``window`` is the receive buffer in bytes, for a slow reader."""
        connection = socket.socket()
        if window is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(("127.0.0.1", self.port))
        except BaseException:
            connection.close()
            raise
        return connection

    def listens(self):
        """Whether a client can still connect."""
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return False
        return True


X = np.arange(8, dtype=np.float32).reshape(2, 4)
INFER = "/v2/models/m/infer"


def call(server, method, path, body=None, headers=None):
    """Send a request on a new connection; return the status and the body."""
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def read_all(connection):
    """Read a connection until the other side closes it."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def in_threads(function, count):
    """Call the function on ``count`` threads at the same time, and wait for all."""
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def gain(server):
    """Return the gain of the fixture's model."""
    status, body = call(server, "POST", INFER, json_body(X))
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"][1]


def requires_serving():
    import pytest

    for name in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(name, reason=f"needs {name}: pip install 'fanin[serve]'")


def port_of(process_id):
    """The port that a process listens on, for a server without a log."""

    def found():
        lines = Path(f"/proc/{process_id}/net/tcp").read_text().splitlines()[1:]
        listening = {line.split()[9]: line.split()[1] for line in lines if line.split()[3] == "0A"}
        for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
            with contextlib.suppress(OSError):
                inode = os.readlink(descriptor).removeprefix("socket:[").rstrip("]")
                if inode in listening:
                    return int(listening[inode].rpartition(":")[2], 16)
        return None

    return wait_until(found, "it listens")


REPOSITORY = Path(__file__).resolve().parents[2]
