"""What the serving measurements share: a server process, a client, models, and wrk."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

HEADER = "Inference-Header-Content-Length"


def make_mlp(
    folder: Path, sizes: tuple[int, ...], sparsity: float = 0.9, seed: int = 0
) -> tuple[Path, Path]:
    """Write a perceptron of these widths with constant fan-in; condensed and dense file.

    Its last layer stays dense. The condensed weights lie in a data file, which sessions map.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from fanin.export.onnx_convert import convert

    rng = np.random.default_rng(seed)
    nodes, weights, name = [], [], "x"
    for number, (width, outputs) in enumerate(pairwise(sizes)):
        weight = rng.standard_normal((outputs, width), np.float32) / np.float32(np.sqrt(width))
        last = number == len(sizes) - 2
        if not last:
            fan_in = round(width * (1 - sparsity))
            kept = rng.permuted(np.tile(np.arange(width), (outputs, 1)), axis=1)[:, :fan_in]
            mask = np.zeros_like(weight)
            np.put_along_axis(mask, kept, 1, axis=1)
            weight *= mask
        result = "y" if last else f"h{number}"
        weights += [numpy_helper.from_array(weight, f"w{number}")]
        weights += [numpy_helper.from_array(np.zeros(outputs, np.float32), f"b{number}")]
        inputs = [name, f"w{number}", f"b{number}"]
        nodes.append(helper.make_node("Gemm", inputs, [result], f"fc{number}", transB=1))
        name = result
        if not last:
            name = f"r{number}"
            nodes.append(helper.make_node("Relu", [result], [name]))
    tensors = [
        helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["batch", width])
        for tensor, width in (("x", sizes[0]), ("y", sizes[-1]))
    ]
    graph = helper.make_graph(nodes, "mlp", tensors[:1], tensors[1:], weights)
    dense = folder / "mlp.dense.onnx"
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), dense)
    condensed = folder / "mlp.onnx"
    convert(dense, condensed, external_data_threshold=0)
    return condensed, dense


class Server:
    """A ``fanin serve`` process on a free port of the loopback interface."""

    def __init__(self, *arguments: str | Path):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in __exit__)
        command = [sys.executable, "-m", "fanin", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=self._log, stdout=subprocess.DEVNULL)
        self.port = 0

    def __enter__(self) -> Server:
        for _ in range(600):
            found = re.search(r'"address": "http://[^"]*:(\d+)"', self.log())
            if found:
                self.port = int(found[1])
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"the server did not start:\n{self.log()}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(120)
        self._log.close()

    def log(self) -> str:
        """Return all that it has written."""
        self._log.seek(0)
        return self._log.read()

    def pids(self) -> list[int]:
        """List the processes that serve: the workers, or itself."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return list(map(int, children)) or [pid]

    def memory(self) -> dict[str, int]:
        """Sum anonymous and file-backed bytes of the processes that serve."""
        anonymous = resident = 0
        for pid in self.pids():
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found = dict(re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE))
            anonymous += int(found["Anonymous"]) << 10
            resident += int(found["Rss"]) << 10
        return {"anonymous": anonymous, "file_backed": resident - anonymous}


@dataclass(frozen=True)
class Message:
    """An infer request, ready to send: ``inputs`` as binary tensors, all outputs binary."""

    path: str
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, model: str, inputs: dict[str, np.ndarray]) -> Message:
        """Encode float32 inputs for the model of that name."""
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
        return cls(f"/v2/models/{model}/infer", {HEADER: str(len(head))}, body)

    @property
    def raw(self) -> bytes:
        """The bytes on the wire."""
        lines = [f"POST {self.path} HTTP/1.1", "Host: localhost"]
        lines += [f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


class Client:
    """A connection that is kept: as little of a client as can be, so that the server shows."""

    def __init__(self, port: int):
        self._port = port
        self._connect()

    def ask(self, raw: bytes) -> int:
        """Send a request, read its whole answer, return the status."""
        self._socket.sendall(raw)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head = data[:end].lower()
        found = re.search(rb"content-length: (\d+)", head)
        assert found is not None
        size = end + 4 + int(found[1])
        while len(data) < size:
            data += self._receive()
        if b"connection: close" in head:
            self._socket.close()
            self._connect()
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _receive(self) -> bytes:
        part = self._socket.recv(1 << 16)
        if not part:
            raise ConnectionError("the server closed the connection")
        return part


def wrk(port: int, message: Message, connections: int, seconds: float) -> dict[str, float]:
    """Load the server with wrk; requests/s and latencies in ms. Raises RuntimeError without it."""
    program = shutil.which("wrk")
    if program is None:
        raise RuntimeError("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "body"
        body.write_bytes(message.body)
        lines = ['wrk.method = "POST"', f'wrk.body = io.open("{body}", "rb"):read("*a")']
        lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in message.headers.items()]
        script = Path(folder) / "load.lua"
        script.write_text("\n".join(lines))
        url = f"http://127.0.0.1:{port}{message.path}"
        options = ["-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "--timeout", "30s"]
        done = subprocess.run(
            [program, *options, "-s", script, url], capture_output=True, text=True
        )
    if done.returncode or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"wrk saw failures:\n{done.stdout}{done.stderr}")
    return read_wrk(done.stdout)


def read_wrk(text: str) -> dict[str, float]:
    """Read requests/s and latencies in ms from what wrk prints; RuntimeError for other text."""
    result = {"requests_per_second": float(_found(r"Requests/sec: +([\d.]+)", text)[0])}
    for percent in ("50", "99"):
        # wrk fills short units up with a space.
        number, unit = _found(rf"^ +{percent}% +([\d.]+)(us|ms|s) *$", text)
        result[f"p{percent}_ms"] = float(number) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]
    return result


def _found(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"wrk's output is not understood:\n{text}")
    return found.groups()
