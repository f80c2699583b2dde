"""`fanin serve` and signals: no request is lost, and what is cut off is told so."""

import http.client
import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ._serving import INFER, Server, X, binary_body, call, gain, requires_serving, save, slow_model

requires_serving()


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
        target=lambda: answers.append(call(server, "POST", INFER, body, headers))
    )
    client.start()
    while b"fanin_in_flight_requests 1.0" not in call(server, "GET", "/metrics")[1]:
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
                target=lambda: answers.append(call(server, "POST", INFER, body, headers))
            )
            for _ in range(4)
        ]
        for client in clients:
            client.start()
        while b"fanin_in_flight_requests 4.0" not in call(server, "GET", "/metrics")[1]:
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
        assert call(server, "POST", INFER, b"{")[0] == 400
        gain(server)
        _, text = call(server, "GET", "/metrics")
        for status in (200, 400):
            line = f'fanin_requests_total{{model="m",status="{status}",version="1"}} 1.0'
            assert line.encode() in text
        assert server.process.wait(60) == 0
