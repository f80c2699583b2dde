"""W3C Trace Context, and spans that reach an OTLP collector."""

import gzip
import http.server
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from .._waiting import PATIENCE, wait_until
from ._serving import call, gain_model, get, json_body, post, requires_serving, save

requires_serving()

from fanin.deploy.serve import SettingsError  # noqa: E402
from fanin.deploy.serve.tracing import Trace  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-01"
INFER = "/v2/models/m/infer"


def test_a_trace_is_continued():
    trace = Trace.of([("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")])
    assert (trace.trace_id, trace.parent_id, trace.flags) == (TRACE, CALLER, "01")
    assert trace.state == "a=1,b=2"
    assert trace.span_id not in (CALLER, Trace.of([("traceparent", PARENT)]).span_id)
    assert trace.response == f"00-{TRACE}-{trace.span_id}-01"
    later = Trace.of([("traceparent", f"01-{TRACE}-{CALLER}-00-more")])
    assert later.response.startswith(f"00-{TRACE}-")
    assert later.response.endswith("-00")


@pytest.mark.parametrize(
    "value",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-more",
        f"ff-{TRACE}-{CALLER}-01",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{CALLER}-01",
        f"{PARENT}, {PARENT}",
    ],
)
def test_a_malformed_header_is_no_trace(value):
    assert Trace.of([("traceparent", value)]) is None
    begun = Trace.of([("traceparent", value)], spans=True)
    assert begun.trace_id != TRACE
    assert begun.parent_id == ""


def test_two_parents_are_none():
    assert Trace.of([("traceparent", PARENT)] * 2) is None
    long = Trace.of([("traceparent", PARENT), ("tracestate", "a" * 600)])
    assert long.state == ""


def test_the_response_and_the_log_name_the_trace(serving, caplog):
    caplog.set_level("INFO", "fanin.serve")
    app = serving(access_log=True)
    answer = post(app, INFER, json_body(X), {"traceparent": PARENT})
    _, trace, span, flags = answer.headers["traceresponse"].split("-")
    assert (answer.status, trace, flags) == (200, TRACE, "01")
    fields = caplog.records[-1].fields
    assert (fields["trace_id"], fields["span_id"], fields["parent_id"]) == (TRACE, span, CALLER)
    refused = post(app, INFER, b"{", {"traceparent": PARENT})
    assert (refused.status, refused.headers["traceresponse"][3:35]) == (400, TRACE)
    assert "traceresponse" not in post(app, INFER, json_body(X)).headers
    assert "traceresponse" not in get(app, "/v2", headers={"traceparent": "x"}).headers


def test_spans_need_their_extra(tmp_path):
    """The option without the packages says what to install."""
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from fanin.cli import main; sys.argv = ['fanin', 'serve', 'm.onnx', '--otel']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "pip install 'fanin[otel]'" in done.stderr


class Collector(http.server.BaseHTTPRequestHandler):
    bodies: list

    def do_POST(self):
        self.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    kind = type("Receiving", (Collector,), {"bodies": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", kind.bodies
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def traced(monkeypatch, collector, serving):
    """Make an app that sends spans."""
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'fanin[otel]'")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector[0])
    return lambda: serving(otel=True)


@pytest.mark.parametrize(
    ("variables", "caller", "sampled"),
    [
        ({}, "01", "01"),
        ({}, "00", "00"),
        ({}, "", "01"),
        ({}, "03", "03"),  # the trace's id is random
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "01", "00"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "", "00"),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, "00", "01"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, "01", "00"),
        ({"OTEL_SDK_DISABLED": "true"}, "01", "00"),
    ],
)
def test_the_response_tells_whether_a_span_is_sent(traced, monkeypatch, variables, caller, sampled):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    app = traced()
    headers = {"traceparent": f"{PARENT[:-2]}{caller}"} if caller else {}
    answer = post(app, INFER, json_body(X), headers)
    assert answer.headers["traceresponse"].split("-")[3] == sampled
    other = get(app, "/v2", headers=headers)  # has no span
    assert int(other.headers["traceresponse"].split("-")[3], 16) & 1 == 0


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'.* only http/protobuf can be used",
        ),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER is 'console'"),
        ({"OTEL_PROPAGATORS": "tracecontext,b3"}, "OTEL_PROPAGATORS is 'tracecontext,b3'"),
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER is 'sometimes'"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"},
            "OTEL_TRACES_SAMPLER_ARG is '10%', not a number from 0 to 1",
        ),
    ],
)
def test_what_opentelemetry_would_pass_over_is_refused(traced, monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        traced()


def test_a_refused_variable_ends_the_start_with_a_sentence(tmp_path):
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'fanin[otel]'")
    save(gain_model(3), tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "fanin", "serve", "m.onnx", "--otel", "--port", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fanin: --otel: OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'")


def spans_in(bodies):
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    found = []
    for path, body in bodies:
        assert path == "/v1/traces"
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        for resource in service.ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            assert names["service.name"] == "fanin"
            found += [span for scope in resource.scope_spans for span in scope.spans]
    return found


def test_spans_reach_a_collector(tmp_path, start, collector):
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'fanin[otel]'")
    grpc = pytest.importorskip("grpc", reason="pip install 'fanin[grpc]'")
    address, bodies = collector
    model = save(gain_model(3), tmp_path / "m.onnx")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    options = ("--otel", "--threads", 1, "--poll", 0, "--grpc-port", 0)
    with start(f"m={model}", *options, env=environment) as server:
        assert call(server, "POST", INFER, json_body(X), {"traceparent": PARENT})[0] == 200
        assert call(server, "POST", INFER, b"{")[0] == 400  # a trace of its own
        with grpc.insecure_channel(server.events("serving")[0]["grpc"]) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as refused:
                method(b"\n\x01n", timeout=PATIENCE, metadata=(("traceparent", PARENT),))
            context = dict(refused.value.trailing_metadata())["traceresponse"]
        wait_until(lambda: len(spans_in(bodies)) == 5, "the spans arrive")
    spans = spans_in(bodies)
    traced = [span for span in spans if span.trace_id.hex() == TRACE]
    requests = [span for span in traced if span.name == "infer"]
    assert {span.parent_span_id.hex() for span in requests} == {CALLER}
    over_http = next(span for span in requests if span.span_id.hex() not in context)
    (over_grpc,) = [span for span in requests if span is not over_http]
    assert context == f"00-{TRACE}-{over_grpc.span_id.hex()}-01"
    queue = next(span for span in traced if span.name == "queue")
    run = next(span for span in traced if span.name == "run")
    assert queue.parent_span_id == run.parent_span_id == over_http.span_id
    assert queue.end_time_unix_nano == run.start_time_unix_nano
    assert over_http.start_time_unix_nano <= queue.start_time_unix_nano
    assert run.start_time_unix_nano <= run.end_time_unix_nano <= over_http.end_time_unix_nano
    values = {item.key: item.value for item in over_http.attributes}
    assert values["fanin.model"].string_value == "m"
    assert values["http.response.status_code"].int_value == 200
    (own,) = [span for span in spans if span.trace_id.hex() != TRACE]
    assert own.parent_span_id == b""
    assert {item.key: item.value for item in own.attributes}[
        "http.response.status_code"
    ].int_value == 400


@pytest.mark.slow
def test_a_collector_that_is_gone_delays_nothing(tmp_path, start):
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'fanin[otel]'")
    model = save(gain_model(3), tmp_path / "m.onnx")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with start(f"m={model}", "--otel", "--poll", 0, "--drain-delay", 0, env=environment) as server:
        for _ in range(20):
            assert call(server, "POST", INFER, json_body(X))[0] == 200
        server.process.terminate()
        assert server.process.wait(30) == 0
    lines = server.log.read_text().splitlines()
    assert len(lines) == len(server.events())  # whatever the exporter says is an event, too
    assert not any(event["event"].startswith("unhandled") for event in server.events())
