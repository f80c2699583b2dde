"""W3C Trace Context: which trace a request belongs to.

https://www.w3.org/TR/trace-context/ (``traceparent``) and its Level 2 draft for responses
(``traceresponse``).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

PARENT, STATE, RESPONSE = "traceparent", "tracestate", "traceresponse"

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED, _RANDOM = 1, 2  # bits of the flags
_MOST_STATE = 512  # characters that a vendor must pass on, by the specification


@dataclass
class Trace:
    """A request's place in a trace.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: The caller's span, 16 hexadecimal digits; empty if the trace begins here.
        span_id: This request's span.
        flags: The caller's, two hexadecimal digits; bit 0 tells that it samples the trace.
        state: The vendors' ``tracestate``, passed on to the exporter.
        sampled: What the answer tells. A server that sends no spans, but logs traces, says what the
            caller said; one that sends spans, whether the request has one.

    """

    trace_id: str
    parent_id: str
    span_id: str
    flags: str
    state: str = ""
    sampled: bool = False

    @classmethod
    def of(cls, headers: Iterable[tuple[str, str]], spans: bool = False) -> Trace | None:
        """Read a request's headers, with lower-case names.

        As the specification wants it, a ``traceparent`` that is malformed or repeated is ignored.
        Without a valid one there is no trace, or a new one if the server sends ``spans``.
        """
        trace = cls._continued(headers)
        if spans:
            return trace or cls.new()
        if trace is not None:
            trace.sampled = bool(int(trace.flags, 16) & _SAMPLED)
        return trace

    @classmethod
    def new(cls) -> Trace:
        """Begin a trace."""
        return cls(secrets.token_hex(16), "", secrets.token_hex(8), "00")

    @classmethod
    def _continued(cls, headers: Iterable[tuple[str, str]]) -> Trace | None:
        parents, states = [], []
        for name, value in headers:
            if name == PARENT:
                parents.append(value.strip())
            elif name == STATE:
                states.append(value.strip())
        found = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
        if found is None:
            return None
        version, trace_id, parent_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more):
            return None
        if not int(trace_id, 16) or not int(parent_id, 16):
            return None
        state = ",".join(states)
        kept = state if len(state) <= _MOST_STATE and state.isascii() else ""
        return cls(trace_id, parent_id, secrets.token_hex(8), flags, kept)

    @property
    def response(self) -> str:
        """The value of the response's header."""
        flags = int(self.flags, 16) & _RANDOM | (_SAMPLED if self.sampled else 0)
        return f"00-{self.trace_id}-{self.span_id}-{flags:02x}"

    def fields(self) -> dict[str, str | None]:
        """Return the fields of a log line."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_id": self.parent_id or None,
        }
