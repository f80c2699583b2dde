"""What a server is started with: every option of ``fanin serve``, checked before anything opens."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..cpus import MAX_THREADS, available_cpus

# Where the command line takes the token from.
TOKEN_VARIABLE = "FANIN_SERVE_TOKEN"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

# Answers may be larger than the largest request.
_LEAST_BUFFERED = 64 << 20


class SettingsError(ValueError):
    """An option that cannot be; says which and what it may be."""


@dataclass(frozen=True)
class ModelSource:
    """A model by name: an .onnx file, or a folder of versions (``1/model.onnx``, ``2/…``)."""

    name: str
    path: Path

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingsError(
                f"'{self.name}' cannot be a model's name: letters, digits, _, . and - can. "
                "Give one as NAME=PATH"
            )

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """Read PATH or NAME=PATH; without a name it is that of the file or folder."""
        name, mark, path = text.partition("=")
        if not mark or "/" in name:
            path = text
            name = Path(text).stem if text.endswith((".onnx", ".ort")) else Path(text).name
        return cls(name, Path(path).absolute())


@dataclass(frozen=True)
class ServeSettings:
    """Everything that a server needs to know. Times are in seconds, sizes in bytes.

    ``threads`` is the intra-op pool of every session, ``concurrency`` how many requests of a model
    run at the same time, ``workers`` the number of processes. What is None is chosen so that
    workers × concurrency × threads is the number of CPUs: all threads for one request.
    ``queue`` bounds the requests of a model that wait, ``max_connections`` the connections of a
    process, ``max_buffered`` the bytes of requests and answers that it holds at a time.
    ``max_batch`` above 1 turns dynamic batching on: that many rows a run, for which no request
    waits longer than ``batch_delay``.
    ``versions`` is how many of the newest versions in a folder are served. ``poll`` is the interval
    at which files are looked at for a reload; 0 leaves reloads to the repository API.
    ``trial_timeout`` is the time that a version may take to be opened and run once in a process of
    its own, before the server opens it; 0 opens it in the server at once. On SIGTERM
    the server goes on for ``drain_delay`` while it says that it is not ready, then ends what it has
    begun, at most ``drain_timeout``.
    """

    models: tuple[ModelSource, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int | None = None
    concurrency: int | None = None
    queue: int = 64
    timeout: float = 30.0
    max_body: int = 64 << 20
    max_buffered: int | None = None
    max_connections: int = 512
    max_dimension: int = 4096
    min_dimension: int = 1
    max_batch: int = 1
    batch_delay: float = 0.002
    versions: int = 1
    poll: float = 2.0
    trial_timeout: float = 600.0
    drain_delay: float = 1.0
    drain_timeout: float = 30.0
    token: str | None = field(default=None, repr=False)
    access_log: bool = False
    log_format: str = "json"

    def __post_init__(self) -> None:
        if not self.models:
            raise SettingsError("there is no model to serve")
        for name in self.names:
            if self.names.count(name) > 1:
                raise SettingsError(f"two models are named '{name}': give one as NAME=PATH")
        _within("--port", self.port, 0, 65535)
        _within("--workers", self.workers, 1, 256)
        for option in ("threads", "concurrency"):
            if getattr(self, option) is not None:
                _within(f"--{option}", getattr(self, option), 1, MAX_THREADS)
        _within("--queue", self.queue, 0, 1_000_000)
        _within("--timeout", self.timeout, 0.001, 86400)
        _within("--max-body", self.max_body, 1, 1 << 40)
        if self.max_buffered is not None:
            _within("--max-buffered", self.max_buffered, 1, 1 << 50)
        _within("--max-connections", self.max_connections, 1, 1_000_000)
        _within("--max-dimension", self.max_dimension, 1, 1 << 31)
        _within("--min-dimension", self.min_dimension, 0, 1)
        _within("--max-batch", self.max_batch, 1, self.max_dimension)
        _within("--batch-delay", self.batch_delay, 0, 60)
        _within("--versions", self.versions, 1, 1000)
        _within("--poll", self.poll, 0, 86400)
        _within("--trial-timeout", self.trial_timeout, 0, 86400)
        _within("--drain-delay", self.drain_delay, 0, 86400)
        _within("--drain-timeout", self.drain_timeout, 0, 86400)
        if self.token is not None and (not self.token.isascii() or len(self.token) < 16):
            raise SettingsError(
                f"a token has 16 or more ASCII characters: set {TOKEN_VARIABLE} to such a one, as "
                "openssl rand -hex 16 prints it"
            )
        if self.log_format not in ("json", "text"):
            raise SettingsError(f"--log-format is '{self.log_format}', neither json nor text")

    @property
    def names(self) -> list[str]:
        """Names of all models."""
        return [model.name for model in self.models]

    @property
    def session_threads(self) -> int:
        """Threads of each session."""
        if self.threads is not None:
            return self.threads
        return max(1, available_cpus() // self.workers // (self.concurrency or 1))

    @property
    def runs(self) -> int:
        """Requests of a model that run at the same time in a process."""
        if self.concurrency is not None:
            return self.concurrency
        return max(1, available_cpus() // self.workers // self.session_threads)

    @property
    def buffered(self) -> int:
        """Bytes of requests and answers that a process holds at a time: eight of the largest."""
        if self.max_buffered is not None:
            return self.max_buffered
        return max(8 * self.max_body, _LEAST_BUFFERED)

    def to_json(self) -> str:
        """Serialize, for another process."""
        models = [[model.name, str(model.path)] for model in self.models]
        return json.dumps({**asdict(self), "models": models})

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        """Read what ``to_json`` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ServeSettings:
        """Make settings of plain values: models are PATH or NAME=PATH, or [name, path] pairs."""
        unknown = sorted(set(values) - {item.name for item in fields(cls)})
        if unknown:
            raise SettingsError(f"there is no setting {', '.join(unknown)}")
        models = tuple(
            ModelSource.parse(item)
            if isinstance(item, str)
            else ModelSource(item[0], Path(item[1]))
            for item in values.get("models", ())
        )
        return cls(**{**values, "models": models})


def _within(option: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError(f"{option} is {value!r}, not a number")
    if not low <= value <= high:
        raise SettingsError(f"{option} is {value:g}; it may be {low:g} to {high:g}")
