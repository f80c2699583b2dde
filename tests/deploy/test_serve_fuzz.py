"""Malformed requests: never a 500, 503 only from a full queue, and memory does not grow."""

import asyncio
import http.client
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ._serving import (
    HEADER,
    Server,
    ask,
    binary_body,
    gain_model,
    json_body,
    requires_serving,
    save,
)

requires_serving()

from fanin.deploy.serve import ModelSource, ServeSettings  # noqa: E402
from fanin.deploy.serve.app import create_app  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)
PATHS = [
    *("/v2/models/m/infer", "/v2/models/m/versions/1/infer"),
    *("/v2/models/n/infer", "/v2/models/m/versions/x/infer", "/v2/models/%00/infer"),
    *("/v2/repository/index", "/v2/repository/models/m/load", "/v2/repository/models/n/unload"),
    *("/v2", "/v2/models/m", "/v2/models/m/ready", "/v2/health/ready", "/metrics", "/docs"),
    *("/v2/models/stats", "/v2/models/m/stats", "/v2/models/m/versions/2/config"),
    *("/", "/v2/models//infer", "/v2/models/../../etc/passwd", "/openapi.json?a=%ff"),
]
WORDS = ["", "x", "y", "FP32", "INT64", "é\ud800", "a" * 300, "../../etc/passwd", "\0"]
NUMBERS = [0, -1, 1, 2, 4, 2**31, 2**63, -(2**63) - 1, 1e308, -0.0, 0.5]


def value(rng, depth=0):
    """Some JSON."""
    kind = rng.randrange(7 if depth < 3 else 4)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind <= 3:
        return rng.choice(WORDS)
    if kind == 4:
        return {rng.choice([*WORDS, "name", "data", "shape"]): value(rng, depth + 1)}
    return [value(rng, depth + 1) for _ in range(rng.randrange(5))]


def spoil(rng, node):
    """Change one thing in a valid request."""
    if isinstance(node, dict) and node and rng.random() < 0.8:
        key = rng.choice(list(node))
        if rng.random() < 0.1:
            del node[key]
        elif rng.random() < 0.1:
            node[rng.choice(WORDS)] = value(rng)
        else:
            node[key] = spoil(rng, node[key])
        return node
    if isinstance(node, list) and node and rng.random() < 0.7:
        at = rng.randrange(len(node))
        if rng.random() < 0.2:
            node.insert(at, value(rng))
        else:
            node[at] = spoil(rng, node[at])
        return node
    return value(rng)


def bytes_of(rng, body):
    """Truncate, extend or flip bits."""
    kind = rng.randrange(4)
    if kind == 0:
        return body[: rng.randrange(len(body) + 1)]
    if kind == 1:
        return body + rng.randbytes(rng.randrange(20))
    if kind == 2 and body:
        at = rng.randrange(len(body))
        return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    return rng.randbytes(rng.randrange(200))


def request(rng):
    """Method, path, body and headers of a request that is usually invalid somewhere."""
    method = rng.choice(["POST"] * 30 + ["GET", "PUT", "DELETE", "HEAD"])
    path = rng.choice(PATHS[:2] * 20 + PATHS)
    if rng.random() < 0.5:
        body, headers = json_body(X), {}
    else:
        body, headers = binary_body(X)
    kind = rng.randrange(4)
    if kind == 0:
        end = int(headers.get(HEADER, len(body)))
        head = json.dumps(spoil(rng, json.loads(body[:end]))).encode()
        if HEADER in headers and rng.random() < 0.9:
            headers[HEADER] = str(len(head))
        body = head + body[end:]
    elif kind == 1:
        body = bytes_of(rng, body)
    elif kind == 2:
        headers[HEADER] = rng.choice(["0", "-1", "99999999999", "x", str(len(body)), "1e1", ""])
    if rng.random() < 0.1:
        headers["content-encoding"] = rng.choice(["gzip", "deflate", "br", "", "identity, gzip"])
    return method, path, body, headers


@pytest.mark.parametrize("seed", range(4))
def test_spoilt_requests_end_in_4xx(tmp_path, seed):
    rng = random.Random(seed)
    source = ModelSource("m", save(gain_model(3), tmp_path / "m.onnx"))
    app = create_app(ServeSettings((source,), poll=0, threads=1, trial_timeout=0))
    app.state.fanin.open()

    async def run():
        statuses = []
        for _ in range(150):
            method, path, body, headers = request(rng)
            answer = await ask(app, method, path, body, headers)
            assert 200 <= answer.status < 500, (method, path, body, headers, answer.body)
            if answer.status >= 400 and method != "HEAD":
                assert answer.json["error"]
            statuses.append(answer.status)
        answer = await ask(app, "POST", PATHS[0], json_body(X))
        assert (answer.array() == 3 * X).all()
        return statuses

    statuses = asyncio.run(run())
    app.state.fanin.close()
    assert 200 in statuses  # some are valid, or this would test only the first check
    assert statuses.count(400) > 40


def resident(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)[1])


def send(connection, method, path, body, headers):
    """Sent raw, because http.client refuses some of these paths and headers."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {content}" for name, content in headers.items()]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    answer.read()
    closed = answer.will_close
    answer.close()
    return answer.status, closed


@pytest.mark.slow
def test_10000_spoilt_requests_leave_the_server_as_it_was(tmp_path):

    rng = random.Random(0)
    model = save(gain_model(3), tmp_path / "m.onnx")
    with Server(model, "--threads", 1, log=tmp_path / "log") as server:
        connection = server.connect()
        before = None
        for number in range(11_000):
            status, closed = send(connection, *request(rng))
            assert 200 <= status < 500
            if closed:
                connection.close()
                connection = server.connect()
            if number == 1000:
                before = resident(server.process.pid)
        assert resident(server.process.pid) < before * 1.02 + 1024
        connection.close()
        client = http.client.HTTPConnection(server.address)
        client.request("POST", "/v2/models/m/infer", json_body(X))
        assert client.getresponse().status == 200
        client.close()
        assert server.events("request") == []  # any 5xx would be logged
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_schemathesis_finds_no_server_error(tmp_path):
    """Schemathesis generates requests from the server's OpenAPI description."""
    pytest.importorskip("schemathesis", reason="pip install schemathesis")
    model = save(gain_model(3), tmp_path / "m.onnx")
    with Server(model, "--threads", 1, log=tmp_path / "log") as server:
        command = [str(Path(sys.executable).parent / "schemathesis"), "run"]
        command += [f"http://{server.address}/openapi.json", "--checks", "not_a_server_error"]
        command += ["--max-examples", "100", "--seed", "1"]
        command += ["--phases", "coverage,fuzzing"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert server.process.poll() is None
        assert server.events("request") == []
    assert "Traceback" not in server.log.read_text()
