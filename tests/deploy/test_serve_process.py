"""`fanin serve` as a process: a foreign client, signals, workers, broken surroundings."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ._serving import Server, binary_body, gain_model, json_body, requires_serving, save, slow_model

requires_serving()

from fanin.deploy import open_session  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)
INFER = "/v2/models/m/infer"


def ask(server, method, path, body=None, headers=None):
    """One request on a connection of its own: status, body."""
    connection = http.client.HTTPConnection(server.address, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def gain(server):
    status, body = ask(server, "POST", INFER, json_body(X))
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"][1]


@pytest.fixture
def model(tmp_path):
    return save(gain_model(3), tmp_path / "m" / "1" / "model.onnx")


@pytest.fixture
def start(tmp_path):
    def make(*arguments, **more):
        return Server(*arguments, log=tmp_path / "server.log", **more)

    return make


def test_a_client_that_is_not_ours_gets_what_the_session_gives(start, save_condensed):
    """tritonclient: health, metadata, repository, JSON and binary infer, errors."""
    triton = pytest.importorskip("tritonclient.http", reason="pip install tritonclient[http]")
    path = save_condensed("net.onnx")
    (expected,) = open_session(path, threads=1).run(None, {"X": X})
    with start(path, "--threads", 1) as server:
        client = triton.InferenceServerClient(server.address)
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert client.is_model_ready("net", "1")
        assert not client.is_model_ready("net", "2")
        assert not client.is_model_ready("absent")
        assert client.get_server_metadata()["name"] == "fanin"
        metadata = client.get_model_metadata("net")
        assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 4]}]
        assert client.get_model_repository_index()[0]["state"] == "READY"

        for binary in (True, False):
            tensor = triton.InferInput("X", X.shape, "FP32")
            tensor.set_data_from_numpy(X, binary_data=binary)
            output = triton.InferRequestedOutput("Y", binary_data=binary)
            for outputs in (None, [output]):
                for packing in (None, "gzip", "deflate"):
                    result = client.infer(
                        "net",
                        [tensor],
                        outputs=outputs,
                        request_id="7",
                        request_compression_algorithm=packing,
                    )
                    assert result.as_numpy("Y").tobytes() == expected.tobytes()
                    assert result.get_response()["id"] == "7"

        small = triton.InferInput("X", [1, 3], "FP32")
        small.set_data_from_numpy(np.ones((1, 3), np.float32))
        wrong = triton.InferInput("X", [1, 4], "FP64")
        wrong.set_data_from_numpy(np.ones((1, 4)))
        for inputs, more, message in (
            ([small], {}, "has size 3 in dimension 1"),
            ([wrong], {}, "datatype is FP64"),
            ([], {}, "lacks the input X"),
            ([tensor], {"sequence_id": 3, "sequence_start": True}, "sequence_id"),
            ([tensor], {"model_version": "9"}, "serves version 1, not '9'"),
        ):
            with pytest.raises(triton.InferenceServerException, match=message):
                client.infer("net", inputs, **more)
        with pytest.raises(triton.InferenceServerException, match="no model 'absent'"):
            client.infer("absent", [tensor])
        client.unload_model("net")
        assert not client.is_model_ready("net")
        client.load_model("net")
        assert client.infer("net", [tensor]).as_numpy("Y").tobytes() == expected.tobytes()
        client.close()


def test_files_are_reloaded_and_garbage_is_not(start, model):
    with start(model.parent.parent, "--poll", 0.1) as server:
        assert gain(server) == 3
        save(gain_model(5), model.parent.parent / "2" / "model.onnx")
        server.wait_for("loaded", 2)
        assert gain(server) == 5
        (model.parent.parent / "2" / "model.onnx").write_bytes(b"garbage")
        (failure,) = server.wait_for("load failed")
        assert "not an ONNX file" in failure["reason"]
        assert failure["kept"] == "2"
        assert gain(server) == 5
        _, text = ask(server, "GET", "/metrics")
        assert b'fanin_model_loads_total{model="m",result="failed"} 1.0' in text
        assert b"not an ONNX file" in ask(server, "POST", "/v2/repository/index")[1]


class Load:
    """Clients with keep-alive that send until an answer closes their connection."""

    def __init__(self, server, clients=4):
        self.server = server
        self.answers, self.lost = [], []
        self.threads = [threading.Thread(target=self._client) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self):
        body, headers = binary_body(X)
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        try:
            while True:
                connection.request("POST", INFER, body, headers)
                answer = connection.getresponse()
                answer.read()
                self.answers.append(answer.status)
                if answer.will_close:
                    return
        except Exception as error:
            self.lost.append(error)
        finally:
            connection.close()

    def join(self):
        for thread in self.threads:
            thread.join(60)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_loses_no_request(start, model, workers):
    with start(model.parent.parent, "--workers", workers, "--drain-delay", 0.5) as server:
        server.wait_for("serving", workers)
        load = Load(server)
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        load.join()
        assert server.process.wait(60) == 0
    assert load.lost == []
    assert set(load.answers) == {200}
    assert len(load.answers) > 10
    assert len(server.events("stopped")) == workers


def stop_during_a_run(server, body, headers):
    """Send SIGTERM while a request runs; returns the client's answers."""
    answers = []
    client = threading.Thread(
        target=lambda: answers.append(ask(server, "POST", INFER, body, headers))
    )
    client.start()
    while b"fanin_in_flight_requests 1.0" not in ask(server, "GET", "/metrics")[1]:
        assert client.is_alive()
    server.process.send_signal(signal.SIGTERM)
    client.join(60)
    return answers


def test_a_run_under_way_ends_after_sigterm(start, tmp_path):
    path = save(slow_model(200), tmp_path / "m.onnx")
    body, headers = binary_body(np.ones((512, 512), np.float32))
    with start(path, "--drain-delay", 0, "--threads", 1) as server:
        answers = stop_during_a_run(server, body, headers)
        server.process.wait(60)
    assert [status for status, _ in answers] == [200]


def test_a_run_that_outlasts_the_drain_is_answered_with_an_error_of_the_protocol(start, tmp_path):
    path = save(slow_model(600), tmp_path / "m.onnx")
    body, headers = binary_body(np.ones((512, 512), np.float32))
    arguments = (path, "--drain-delay", 0, "--drain-timeout", 0, "--threads", 1)
    with start(*arguments) as server:
        answers = stop_during_a_run(server, body, headers)
        assert server.process.wait(60) == 0
    ((status, answer),) = answers
    assert status == 503
    assert "ask again" in json.loads(answer)["error"]
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_one_more_signal_cuts_off_what_is_under_way_and_ends_at_once(start, tmp_path, workers):
    path = save(slow_model(300), tmp_path / "m.onnx")
    body, headers = binary_body(np.ones((512, 512), np.float32))
    arguments = (path, "--drain-delay", 0, "--threads", 1, "--concurrency", 1)
    with start(*arguments, "--workers", workers) as server:
        server.wait_for("serving", workers)
        answers = []
        clients = [
            threading.Thread(
                target=lambda: answers.append(ask(server, "POST", INFER, body, headers))
            )
            for _ in range(4)
        ]
        for client in clients:
            client.start()
        while b"fanin_in_flight_requests 4.0" not in ask(server, "GET", "/metrics")[1]:
            assert all(client.is_alive() for client in clients)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        for client in clients:
            client.join(60)
        assert server.process.wait(10) == 0
    assert {status for status, _ in answers} <= {200, 503}
    counted = [event["status"] for event in server.events("request")]
    assert counted == [503] * sum(status == 503 for status, _ in answers)
    assert sum(event.get("cut_off", 0) for event in server.events("stopped")) == len(counted) > 0
    assert "Traceback" not in server.log.read_text()
    assert "terminate called" not in server.log.read_text()


def test_a_signal_while_models_are_loaded_ends_it_as_one_while_it_serves(tmp_path):
    """Without a handler the first process of a container would not even notice."""
    path = save(slow_model(300), tmp_path / "m.onnx")
    server = Server(path, "--threads", 1, log=tmp_path / "log")
    status = Path(f"/proc/{server.process.pid}/status")
    end = time.monotonic() + 60
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:  # the mask of signals with a handler
        assert time.monotonic() < end
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert not server.events("serving")
    assert "Traceback" not in server.log.read_text()


def test_metrics_can_be_scraped_while_draining(start, model):
    with start(model.parent.parent, "--drain-delay", 2, "--threads", 1) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        assert ask(server, "POST", INFER, b"{")[0] == 400
        gain(server)
        _, text = ask(server, "GET", "/metrics")
        for status in (200, 400):
            line = f'fanin_requests_total{{model="m",status="{status}",version="1"}} 1.0'
            assert line.encode() in text
        assert server.process.wait(60) == 0


def test_workers_share_the_port_and_the_metrics_and_one_that_is_killed_is_replaced(
    start, model, tmp_path
):
    arguments = (model, "--workers", 2, "--threads", 1, "--drain-delay", 0)
    with start(*arguments, env={"TMPDIR": str(tmp_path)}) as server:
        first, second = (event["pid"] for event in server.wait_for("serving", 2))
        for _ in range(40):
            assert ask(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
        _, text = ask(server, "GET", "/metrics")
        assert b'fanin_requests_total{model="model",status="200",version="1"} 40.0' in text
        os.kill(first, signal.SIGKILL)
        (died,) = server.wait_for("a worker died")
        assert died["pid"] == first
        replacement = server.wait_for("serving", 3)[2]["pid"]
        assert replacement not in (first, second)
        for _ in range(10):
            assert ask(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
        _, text = ask(server, "GET", "/metrics")
        assert b'fanin_requests_total{model="model",status="200",version="1"} 50.0' in text
        (folder,) = tmp_path.glob("fanin-metrics-*")
        assert not list(folder.glob(f"*_{first}.db"))  # its counts are with those of the dead
        assert (folder / "counter_dead.db").exists()
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert not folder.exists()
        for pid in (second, replacement):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_log_that_cannot_be_written_stops_nothing(model):
    """A full disk under the log: /dev/full refuses every write."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fanin", "serve", str(model), "--access-log"]
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--poll", "0.1"], stdout=full, stderr=full
        )
    server = type("Running", (), {"address": f"127.0.0.1:{port}"})
    try:
        end = time.monotonic() + 60
        while True:
            try:
                assert ask(server, "GET", "/v2/health/ready")[0] == 200
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.1)
        model.write_bytes(b"garbage")
        for _ in range(20):
            assert ask(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 0


def test_the_token_comes_from_the_environment_and_stands_nowhere_else(start, model):
    token = "token-of-this-test-only"
    arguments = (model, "--workers", 2, "--access-log", "--drain-delay", 0)
    with start(*arguments, env={"FANIN_SERVE_TOKEN": token}) as server:
        path = "/v2/models/model"
        assert ask(server, "GET", path)[0] == 401
        assert ask(server, "GET", path, headers={"Authorization": f"Bearer {token}"})[0] == 200
        server.wait_for("request", 2)
        for pid in (event["pid"] for event in server.wait_for("serving", 2)):
            for what in ("environ", "cmdline"):
                assert token.encode() not in Path(f"/proc/{pid}/{what}").read_bytes()
    assert token not in server.log.read_text()


def test_an_address_for_everyone_without_a_token_is_warned_about(start, model):
    with start(model, "--host", "0.0.0.0") as server:
        (warning,) = server.events("everyone who reaches this address can use the server")
        assert warning["level"] == "warning"
        assert "FANIN_SERVE_TOKEN" in warning["remedy"]


def test_slow_and_broken_connections_hold_up_nobody(start, model):
    with start(model, "--threads", 1) as server:
        stuck = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        for connection in stuck:
            connection.sendall(
                b"POST /v2/models/model/infer HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"
            )
        assert ask(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
        for connection in stuck:
            connection.close()
        with socket.create_connection(("127.0.0.1", server.port)) as rude:
            rude.sendall(b"\0\1\2 not HTTP\r\n\r\n")
            assert rude.recv(100).startswith(b"HTTP/1.1 400")
        assert ask(server, "POST", "/v2/models/model/infer", json_body(X))[0] == 200
    assert "Traceback" not in server.log.read_text()


def test_a_body_behind_an_upgrade_is_refused_with_what_to_do_and_nothing_else_is(start, model):
    """The parser hands on no such body. Java's client asks for HTTP/2 so, unless told otherwise."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    body = json_body(X).decode()
    infer = f"POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    chunked = "POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    with start(model, "--threads", 1) as server:
        for text, status, part in (
            (f"{infer}{upgrade}\r\n{body}", 400, b"send the request without Upgrade"),
            (f"{chunked}{upgrade}\r\n0\r\n\r\n", 400, b"send the request without Upgrade"),
            (f"{infer}Upgrade: h2c\r\nConnection: close\r\n\r\n{body}", 200, b"outputs"),
            (f"GET /v2 HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n", 200, b"fanin"),
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(text.encode())
                answer = b"".join(iter(lambda: connection.recv(65536), b""))  # it is closed
            assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer
            assert part in answer


def test_loads_that_wait_for_each_other_do_not_hold_up_scrapes(start, tmp_path):
    path = save(slow_model(200), tmp_path / "m.onnx")
    with start(path, "--threads", 1, "--poll", 0) as server:
        load = "/v2/repository/models/m/load"
        done = []
        clients = [
            threading.Thread(target=lambda: done.append(ask(server, "POST", load)[0]))
            for _ in range(20)
        ]
        save(slow_model(201), path)
        for client in clients:
            client.start()
        # A thread of a scrape would come after those of the loads, of which the first still runs.
        assert b"fanin_model_loads_total" in ask(server, "GET", "/metrics")[1]
        assert len(done) < 20
        for client in clients:
            client.join(60)
        assert done == [200] * 20


def test_heads_that_do_not_end_are_cut_off_and_slow_ones_are_not(start, model):
    head = f"POST {INFER.replace('/m/', '/model/')} HTTP/1.1\r\nHost: x\r\n".encode()
    body = json_body(X)
    rest = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with start(model, "--threads", 1, "--timeout", 1) as server:

        def answer(*parts):
            """What comes for these parts, one every 0.4 seconds, until the connection is closed."""
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                for part in parts:
                    with contextlib.suppress(ConnectionError):
                        connection.sendall(part)
                    time.sleep(0.4)
                return b"".join(iter(lambda: connection.recv(65536), b""))

        drip = answer(head, *[b"X: a\r\n"] * 5)
        assert drip.startswith(b"HTTP/1.1 408 ")
        assert b"the head of the request did not come within 1 s" in drip
        after_a_request = answer(head + rest + head, *[b"X: a\r\n"] * 5)
        assert after_a_request.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in after_a_request
        slow = answer(head, rest + head, b"Connection: close\r\n" + rest)
        assert slow.count(b"HTTP/1.1 200 ") == 2
        # A connection that is kept is not one that is late.
        connection = http.client.HTTPConnection(server.address, timeout=30)
        connection.connect()
        kept = connection.sock
        for _ in range(2):
            time.sleep(1.5)
            connection.request("POST", INFER.replace("/m/", "/model/"), body)
            assert len(connection.getresponse().read()) > 50
        assert connection.sock is kept
        connection.close()


def test_a_head_without_bounds_is_cut_off_and_a_long_one_is_not(start, model):
    with start(model, "--threads", 1) as server:
        assert ask(server, "GET", "/v2", headers={"X": "a" * 60_000})[0] == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    connection.sendall(b"a" * 4096)
                    sent += 4096
        assert sent < 64 << 20
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nX: ")
            time.sleep(0.2)
            connection.sendall(b"a" * 66_000)
            assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
        # A large body and the beginning of the next head in one piece are no large head.
        body = json_body(X, id="a" * 100_000)
        head = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        request = head % len(body) + body
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            for part in (request[:20], request[20:] + request[:20], request[20:]):
                connection.sendall(part)
                time.sleep(0.2)
            connection.shutdown(socket.SHUT_WR)
            answers = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answers.count(b"HTTP/1.1 200 ") == 2


def run(*arguments):
    command = [sys.executable, "-m", "fanin", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_does_not_open_ends_the_server_with_the_reason(tmp_path, workers):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"garbage")
    done = run(path, "--workers", workers, "--port", 0)
    assert done.returncode == 1
    assert "this is not an ONNX file" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_and_addresses_that_cannot_be(model):
    done = run(model, "--threads", 0)
    assert (done.returncode, "--threads is 0" in done.stderr) == (1, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(model, "--port", taken.getsockname()[1])
    assert (done.returncode, "cannot listen on 127.0.0.1" in done.stderr) == (1, True)
    done = run(model, "--host", "no.such.host.invalid")
    assert (done.returncode, "cannot listen on" in done.stderr) == (1, True)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 2 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder, name="filler"):
    """Write until the disk is full."""
    with contextlib.suppress(OSError), (folder / name).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(folder).free == 0


def wait_for_loads(server, result, count, model="m"):
    """Until the metrics count so many; every request meanwhile is answered."""
    line = f'fanin_model_loads_total{{model="{model}",result="{result}"}} {count}.0'
    end = time.monotonic() + 30
    while line.encode() not in ask(server, "GET", "/metrics")[1]:
        assert time.monotonic() < end
        gain(server)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_is_full_during_a_reload_leaves_the_old_version_serving(
    model, small_disk, workers
):
    """The model, the log and the shared metrics lie on it; the error shows on the network."""
    versions = small_disk / "m"
    shutil.copytree(model.parent.parent, versions)
    arguments = (versions, "--workers", workers, "--threads", 1, "--poll", 0.1, "--access-log")
    server = Server(*arguments, env={"TMPDIR": str(small_disk)}, log=small_disk / "server.log")
    with server:
        server.wait_for("serving", workers)
        (versions / "2").mkdir()
        fill(small_disk)
        with pytest.raises(OSError, match="No space left"):
            (versions / "2" / "model.onnx").write_bytes(gain_model(5).SerializeToString())
        wait_for_loads(server, "failed", workers)
        assert b"it is empty" in ask(server, "POST", "/v2/repository/index")[1]
        assert gain(server) == 3
        (small_disk / "filler").unlink()
        save(gain_model(5), versions / "2" / "model.onnx")
        wait_for_loads(server, "loaded", 2 * workers)
        assert gain(server) == 5
        if workers == 1:  # several write into one log: a line may follow on one that was cut off
            assert [event["version"] for event in server.wait_for("loaded", 2)] == ["1", "2"]
        assert server.process.poll() is None
        assert not server.events("a worker died")


def test_a_worker_that_cannot_come_back_leaves_the_others_serving(start, model):
    """It finds garbage where the others have the sound model in memory."""
    with start(model.parent.parent, "--workers", 2, "--threads", 1, "--poll", 0) as server:
        first, second = (event["pid"] for event in server.wait_for("serving", 2))
        sound = model.read_bytes()
        model.write_bytes(b"garbage")
        os.kill(first, signal.SIGKILL)
        (told,) = server.wait_for("cannot start")
        assert "not an ONNX file" in told["reason"]
        server.wait_for("a worker died", 2)
        assert gain(server) == 3
        model.write_bytes(sound)
        server.wait_for("serving", 3)
        assert gain(server) == 3
        os.kill(second, 0)


def test_several_workers_without_a_temporary_folder_say_so(model, monkeypatch):
    from fanin.deploy.serve import ServeSettings, SettingsError, supervisor

    def nowhere(**_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(supervisor.tempfile, "mkdtemp", nowhere)
    settings = ServeSettings.from_dict({"models": [str(model)], "workers": 2})
    with pytest.raises(SettingsError, match=r"No usable temporary directory.*--workers 1"):
        supervisor.supervise(settings, None)


def test_the_address_of_ipv6_has_brackets(start, model):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with start(model, "--host", "::1") as server:
        (serving,) = server.events("serving")
    assert serving["address"].startswith("http://[::1]:")


METRICS = """
import os, sys
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
from fanin.deploy.serve.metrics import Metrics
"""


def run_metrics(folder, program):
    command = [sys.executable, "-c", METRICS + program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_files_of_shared_metrics_have_their_space_from_the_start(tmp_path):
    """Mapped files with holes would end a worker on a disk that fills up."""
    program = """
Metrics().answered("m", "1", 200, 0.1)
states = [item.stat() for item in os.scandir(sys.argv[1]) if item.name.endswith(".db")]
print(len(states), all(state.st_blocks * 512 >= state.st_size for state in states))
"""
    assert run_metrics(tmp_path, program) == ["3", "True"]


def test_shared_metrics_without_room_for_more_series_keep_those_that_they_have(small_disk):
    program = """
metrics = Metrics()
metrics.answered("m", "1", 200, 0.1)
with open(sys.argv[1] + "/filler", "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
for version in range(1, 100):
    metrics.answered("m" * 100, str(10**17 + version), 200, 0.1)
metrics.answered("m", "1", 200, 0.1)
os.unlink(sys.argv[1] + "/filler")
metrics.answered("m", "later", 200, 0.1)
lines = metrics.text().decode().splitlines()
counted = [line for line in lines if line.startswith("fanin_requests_total")]
print(*(line.split()[1] for line in counted if 'model="m"' in line), 1 < len(counted) < 100)
"""
    assert run_metrics(small_disk, program) == ["2.0", "1.0", "True"]


def test_shared_metrics_leave_out_versions_that_are_gone_and_keep_the_others(tmp_path):
    program = """
from types import SimpleNamespace as Simple
from fanin.deploy.serve import metrics as module
clock = module.time = Simple(now=0.0, monotonic=lambda: clock.now)
serving = ["1", "2"]
repository = Simple(
    index=list,
    serving=lambda: [Simple(name="m", version=Simple(name=name)) for name in serving],
)
metrics = Metrics()
metrics.watch(repository)
def show():
    metrics.forget_gone()
    lines = metrics.text().decode().splitlines()
    counted = [line for line in lines if line.startswith("fanin_requests_total")]
    buckets = [line for line in lines if "_bucket" in line]
    print(*(line.split()[1] for line in counted), len(buckets), end=";")
metrics.load_attempted("m", "1", None)
for version in "1122233":
    metrics.answered("m", version, 200, 0.1)
show()
clock.now += 119
del serving[0]
show()
clock.now += 2
show()
clock.now += 118
serving.append("1")
show()
metrics.answered("m", "1", 200, 0.1)
clock.now += 1000
show()
serving.clear()
show()
clock.now += 121
show()
print(b'fanin_model_loads_total{model="m",result="loaded"} 1.0' in metrics.text())
"""
    shown = " ".join(run_metrics(tmp_path, program)).split(";")
    # Counts of versions 1, 2, 3; version 3 is another worker's, which this one never serves.
    assert shown[:3] == ["2.0 3.0 2.0 162", "2.0 3.0 2.0 162", "2.0 3.0 108"]
    assert shown[3:6] == ["2.0 3.0 108", "3.0 3.0 108", "3.0 3.0 108"]
    assert shown[6:] == ["0", "True"]


def test_dead_workers_leave_their_counts_and_no_files(tmp_path):
    """Three processes count and end; the sums are the same before and after."""
    program = """
metrics = Metrics()
metrics.answered("m", "1", 200, 0.1)
metrics.answered("m", "1", 400, 0.3)
metrics.in_flight.inc()
print(os.getpid())
"""
    pids = [int(run_metrics(tmp_path, program)[0]) for _ in range(3)]
    shared = """
from pathlib import Path
from fanin.deploy.serve.shared_metrics import collect, fold
def state():
    samples = [sample for metric in collect(Path(sys.argv[1])) for sample in metric.samples]
    return {(s.name, *sorted(s.labels.items())): round(s.value, 9) for s in samples if s.value}
"""
    fold = f"""
before = state()
for pid in {pids}:
    fold(Path(sys.argv[1]), pid)
after = state()
gone = dict(before.items() - after.items())
print(len(after) > 10, after.items() <= before.items(), *gone.values())
print(*sorted(os.listdir(sys.argv[1])))
"""
    shown = run_metrics(tmp_path, shared + fold)
    # What is gone are the requests in flight in the dead.
    assert shown[:3] == ["True", "True", "3.0"]
    assert [name for name in shown[3:] if "_dead" in name] == [
        "counter_dead.db",
        "histogram_dead.db",
    ]
    assert not [name for name in shown[3:] if any(str(pid) in name for pid in pids)]
    more = f"""
import fcntl
with open(sys.argv[1] + "/lock", "ab") as scrape:
    fcntl.flock(scrape, fcntl.LOCK_SH)
    try:
        fold(Path(sys.argv[1]), {pids[0]})
    except OSError as error:
        print(type(error).__name__)
"""
    assert run_metrics(tmp_path, shared + more) == ["BlockingIOError"]
