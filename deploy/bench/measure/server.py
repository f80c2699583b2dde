"""A ``fanin serve`` process to measure, and clients that take as little as can be themselves."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_HEADER = "Inference-Header-Content-Length"
_START_SECONDS, _STOP_SECONDS, _ANSWER_SECONDS = 60.0, 120.0, 60.0


class ServerError(RuntimeError):
    """The server did not start, or answered with something else than outputs."""


class Server:
    """A ``fanin serve`` process on a free port of the loopback interface; see ``fanin serve``.

    A context manager; entering it raises ServerError with the server's log when it does not start.
    """

    def __init__(self, *arguments: str | Path):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in __exit__)
        command = [sys.executable, "-m", "fanin", "serve", *map(str, arguments), "--port", "0"]
        self._process = subprocess.Popen(command, stderr=self._log, stdout=subprocess.DEVNULL)
        self.port = 0

    def __enter__(self) -> Server:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            found = re.search(r'"address": "http://[^"]*:(\d+)"', self.log())
            if found:
                self.port = int(found[1])
                return self
            time.sleep(0.1)
        log = self.log()
        self.__exit__()
        raise ServerError(f"the server did not start:\n{log}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_STOP_SECONDS)
        self._log.close()

    def log(self) -> str:
        """Return all that it has written."""
        self._log.seek(0)
        return self._log.read()

    def memory(self) -> dict[str, int]:
        """Sum anonymous and file-backed bytes of the processes that serve: workers, or itself."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        anonymous = resident = 0
        for one in children or [str(pid)]:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            found = dict(re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE))
            anonymous += int(found["Anonymous"]) << 10
            resident += int(found["Rss"]) << 10
        return {"anonymous": anonymous, "file_backed": resident - anonymous}


def message(model: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encode a request for float32 inputs as the bytes on the wire, all tensors binary."""
    entries = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    request = {"inputs": entries, "parameters": {"binary_data_output": True}}
    head = json.dumps(request).encode()
    body = head + b"".join(array.tobytes() for array in inputs.values())
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: localhost"]
    lines += [f"Content-Length: {len(body)}", f"{_HEADER}: {len(head)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(frozen=True)
class Answer:
    """What the server answered: the status, and head and body as they came."""

    status: int
    head: bytes
    body: bytes

    def outputs(self) -> list[np.ndarray]:
        """Decode float32 outputs; ServerError for another answer."""
        found = re.search(_HEADER.lower().encode() + rb": (\d+)", self.head)
        if self.status != 200 or found is None:
            raise ServerError(f"the server answered {self.status}: {self.body[:500]!r}")
        at = int(found[1])
        arrays = []
        for entry in json.loads(self.body[:at])["outputs"]:
            size = entry["parameters"]["binary_data_size"]
            array = np.frombuffer(self.body[at : at + size], np.float32)
            arrays.append(array.reshape(entry["shape"]))
            at += size
        return arrays


class Client:
    """A connection that is kept; it is opened again when the server closes it."""

    def __init__(self, port: int):
        self._port = port
        self._connect()

    def ask(self, raw: bytes) -> Answer:
        """Send a request and read its whole answer; OSError when the connection breaks."""
        self._socket.sendall(raw)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head = data[:end].lower()
        found = re.search(rb"content-length: (\d+)", head)
        if found is None:
            raise ServerError(f"an answer without its length: {head[:500]!r}")
        size = end + 4 + int(found[1])
        while len(data) < size:
            data += self._receive()
        if b"connection: close" in head:
            self.close()
            self._connect()
        return Answer(int(head.split(b" ", 2)[1]), head, data[end + 4 :])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), _ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _receive(self) -> bytes:
        part = self._socket.recv(1 << 16)
        if not part:
            raise ConnectionError("the server closed the connection")
        return part


class Clients:
    """Connections that send one request over and over, together ``rate`` times a second at most.

    They begin at once, and each sends at least one. ``latencies`` (seconds) are of the answers with
    status 200, ``failures`` say what else happened.
    """

    def __init__(self, port: int, raw: bytes, connections: int, rate: float = math.inf):
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self._port, self._raw, self._pause = port, raw, connections / rate
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every client finish its request, then stop."""
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        client, asked, following = None, False, time.perf_counter()
        while not (asked and self._end.is_set()):
            asked = True
            try:
                client = client or Client(self._port)
                start = time.perf_counter()
                status = client.ask(self._raw).status
            except (OSError, ServerError) as error:
                self.failures.append(repr(error))
                client = None
                self._end.wait(0.01)
                continue
            if status == 200:
                self.latencies.append(time.perf_counter() - start)
            else:
                self.failures.append(f"status {status}")
            # A client that fell behind by more than a second does not catch up.
            following = max(following + self._pause, time.perf_counter() - 1)
            time.sleep(max(0.0, following - time.perf_counter()))
        if client is not None:
            client.close()
