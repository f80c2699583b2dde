"""`fanin serve` and signals: no request is lost, and interrupted ones get an error."""

import http.client
import json
import signal
import threading
from pathlib import Path

import pytest

from .._waiting import PATIENCE, wait_until
from ._held import HeldProcess
from ._serving import INFER, Server, X, binary_body, call, gain, requires_serving

requires_serving()


class Load:
    """Keep-alive clients that send requests until a response closes their connection."""

    def __init__(self, server, clients=4):
        self.server = server
        self.answers, self.lost = [], []
        self.threads = [threading.Thread(target=self._client) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self):
        body, headers = binary_body(X)
        connection = http.client.HTTPConnection(self.server.address, timeout=PATIENCE)
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
            thread.join(PATIENCE)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_loses_no_request(start, model, workers):
    # Drains until all clients have been told to disconnect; the next signal ends it.
    with start(model.parent.parent, "--workers", workers, "--drain-delay", 600) as server:
        server.wait_for("serving", workers)
        load = Load(server)
        wait_until(lambda: len(load.answers) > 10 or load.lost, "requests are answered")
        server.process.send_signal(signal.SIGTERM)
        load.join()
        server.wait_for("draining", workers)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    assert load.lost == []
    assert set(load.answers) == {200}
    assert len(load.answers) > 10
    assert len(server.events("stopped")) == workers


class Clients:
    """Requests, each on its own thread and connection, and their responses."""

    def __init__(self, server, count):
        self.answers = []
        body, headers = binary_body(X)
        self.threads = [
            threading.Thread(
                target=lambda: self.answers.append(call(server, "POST", INFER, body, headers))
            )
            for _ in range(count)
        ]
        for thread in self.threads:
            thread.start()
        line = f"fanin_in_flight_requests {count}.0".encode()
        wait_until(lambda: line in call(server, "GET", "/metrics")[1], "the requests are there")

    def join(self):
        for thread in self.threads:
            thread.join(PATIENCE)
        return self.answers


def test_a_run_in_progress_finishes_after_sigterm(start, model, held_runs):
    arguments = (model.parent.parent, "--drain-delay", 0, "--drain-timeout", 600, "--threads", 1)
    with start(*arguments, env=held_runs.environment) as server:
        clients = Clients(server, 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not server.listens(), "the signal has been heard")
        held_runs.release()
        assert [status for status, _ in clients.join()] == [200]
        assert server.process.wait(PATIENCE) == 0


def test_a_run_that_outlasts_the_drain_is_answered_with_an_error_of_the_protocol(
    start, model, held_runs
):
    arguments = (model.parent.parent, "--drain-delay", 0, "--drain-timeout", 0, "--threads", 1)
    with start(*arguments, env=held_runs.environment) as server:
        clients = Clients(server, 1)
        server.process.send_signal(signal.SIGTERM)
        ((status, answer),) = clients.join()
        held_runs.release()
        assert server.process.wait(PATIENCE) == 0
    assert status == 503
    assert "try again" in json.loads(answer)["error"]
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_interrupts_requests_and_ends_at_once(start, model, held_runs, workers):
    """These runs never end."""
    arguments = (model.parent.parent, "--drain-delay", 0, "--drain-timeout", 600, "--threads", 1)
    arguments += ("--concurrency", 1, "--workers", workers)
    with start(*arguments, env=held_runs.environment) as server:
        server.wait_for("serving", workers)
        clients = Clients(server, 4)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: not server.listens(), "the signal has been heard")
        server.process.send_signal(signal.SIGINT)
        answers = clients.join()
        assert server.process.wait(PATIENCE) == 0
    assert [status for status, _ in answers] == [503] * 4
    assert [event["status"] for event in server.events("request")] == [503] * 4
    assert sum(event.get("cut_off", 0) for event in server.events("stopped")) == 4
    assert "Traceback" not in server.log.read_text()
    assert "terminate called" not in server.log.read_text()


def test_a_signal_while_models_are_loaded_ends_it_as_one_while_it_serves(model, tmp_path):
    """Without a handler, the init process of a container would ignore the signal."""
    environment = HeldProcess(tmp_path, "__init__").environment
    server = Server(model, "--threads", 1, env=environment, log=tmp_path / "log")
    status = Path(f"/proc/{server.process.pid}/status")

    def caught():
        """Whether SIGTERM is in the mask of signals with a handler."""
        mask = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        return mask >> (signal.SIGTERM - 1) & 1

    wait_until(caught, "it has a handler", pause=0.001)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    assert not server.events("serving")
    assert "Traceback" not in server.log.read_text()


def test_metrics_can_be_scraped_while_draining(start, model):
    with start(model.parent.parent, "--drain-delay", 600, "--threads", 1) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        assert call(server, "POST", INFER, b"{")[0] == 400
        gain(server)
        _, text = call(server, "GET", "/metrics")
        for status in (200, 400):
            line = f'fanin_requests_total{{model="m",status="{status}",version="1"}} 1.0'
            assert line.encode() in text
        server.process.send_signal(signal.SIGTERM)  # a second signal ends it
        assert server.process.wait(PATIENCE) == 0
