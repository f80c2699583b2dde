"""Spans of requests, queue and run, sent by OpenTelemetry. Needs the extra ``[otel]``.

Where they go, under which service name, and which are sampled is configured by OpenTelemetry's own
environment variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, …).
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from .settings import SettingsError
from .tracing import Trace

_SAMPLER, _SHARE = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_SAMPLERS = ("always_on", "always_off", "traceidratio")
# Variables, the first of which counts that is set, and what they may say.
_SUPPORTED = (
    (("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"), ("http/protobuf",)),
    (("OTEL_TRACES_EXPORTER",), ("otlp",)),
    (("OTEL_PROPAGATORS",), ("tracecontext", "baggage")),
    ((_SAMPLER,), (*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS))),
)

_CLOSE_SECONDS = 5.0  # for the last spans to be sent when the server stops


class Tracer:
    """Creates spans and sends them from a thread of its own; what it cannot send it drops."""

    def __init__(self, processor: SpanProcessor):
        resource = Resource.create()  # of the environment
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "fanin"}))
        self._ids = _ChosenIds()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fanin.serve")

    @classmethod
    def from_environment(cls) -> Tracer:
        """Create a tracer that sends spans in batches over OTLP (HTTP).

        Raises:
            SettingsError: As ``require_supported`` does.

        """
        require_supported()
        return cls(BatchSpanProcessor(OTLPSpanExporter()))

    def start(self, trace: Trace, protocol: str) -> RequestSpan:
        """Begin the span of an infer request; its ids are those of ``trace``.

        Whether it is sampled is noted in ``trace``.
        """
        self._ids.choose(trace)
        try:
            span = self._tracer.start_span(
                "infer",
                context=_parent(trace),
                kind=SpanKind.SERVER,
                attributes={"network.protocol.name": protocol},
            )
        finally:
            self._ids.choose(None)
        trace.sampled = span.is_recording()
        return RequestSpan(self._tracer, span)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        # shutdown() waits for the exporter's retries, whatever they take.
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(_CLOSE_SECONDS)


class RequestSpan:
    """The span of an infer request, and those of its phases."""

    def __init__(self, tracer: Any, span: Span):
        self._tracer = tracer
        self._span = span

    def ran(self, arrival: float, queue_seconds: float, compute_seconds: float) -> None:
        """Add the spans of queue and run.

        Args:
            arrival: When the request entered the queue, by ``time.perf_counter``.
            queue_seconds: How long it waited.
            compute_seconds: How long its run took.

        """
        context = set_span_in_context(self._span)
        start = time.time_ns() - round((time.perf_counter() - arrival) * 1e9)
        for name, seconds in (("queue", queue_seconds), ("run", compute_seconds)):
            end = start + round(seconds * 1e9)
            self._tracer.start_span(name, context=context, start_time=start).end(end)
            start = end

    def end(self, status: int, fields: dict[str, Any]) -> None:
        """End the span with the HTTP status that stands for the outcome, and the log's fields."""
        self._span.set_attribute("http.response.status_code", status)
        for name in ("model", "version", "id"):
            if fields.get(name):
                self._span.set_attribute(f"fanin.{name}", str(fields[name]))
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def require_supported() -> None:
    """Refuse what the environment asks for in vain, since OpenTelemetry would pass over it.

    Raises:
        SettingsError: A variable names another protocol, exporter, propagator or sampler, or a
            share of traces that is none.

    """
    for names, allowed in _SUPPORTED:
        name = next((name for name in names if os.environ.get(name)), None)
        if name is None:
            continue
        asked = [word.strip().lower() for word in os.environ[name].split(",")]
        if not set(asked) <= set(allowed):
            raise SettingsError(
                f"--otel: {name} is {os.environ[name]!r}; change or unset it, since only "
                f"{', '.join(allowed)} can be used here"
            )
    if "ratio" in os.environ.get(_SAMPLER, "").lower():
        share = os.environ.get(_SHARE, "")
        try:
            sound = not share or 0 <= float(share) <= 1
        except ValueError:
            sound = False
        if not sound:
            raise SettingsError(f"--otel: {_SHARE} is {share!r}, not a number from 0 to 1")


def _parent(trace: Trace) -> Any:
    """Return the context of the caller's span, or an empty one."""
    if not trace.parent_id:
        return Context()
    caller = SpanContext(
        int(trace.trace_id, 16),
        int(trace.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(trace.flags, 16)),
        trace_state=TraceState.from_header([trace.state]) if trace.state else None,
    )
    return set_span_in_context(NonRecordingSpan(caller), Context())


class _ChosenIds(IdGenerator):
    """Generates random ids, except for a span whose ids the response has told already."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._chosen: Trace | None = None

    def choose(self, trace: Trace | None) -> None:
        """Use the ids of ``trace`` for what is generated until the next call."""
        self._chosen = trace

    def generate_span_id(self) -> int:
        if self._chosen is not None:
            return int(self._chosen.span_id, 16)
        return self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        if self._chosen is not None:
            return int(self._chosen.trace_id, 16)
        return self._random.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return True
