"""Settings of a server: every option of ``fanin serve``, validated."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..._base.local_paths import RemotePathError, refuse_address
from ...ort_ops.custom_libraries import library_paths
from ..cpus import MAX_THREADS, default_threads

# Environment variable from which the command line takes the token.
TOKEN_VARIABLE = "FANIN_SERVE_TOKEN"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_STATISTICS = "stats"  # no name, since its metadata would have the path of a route of Triton's

_DAY = 86400
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "grpc_port": (0, 65535),
    "workers": (1, 256),
    "threads": (1, MAX_THREADS),
    "concurrency": (1, MAX_THREADS),
    "queue": (0, 1_000_000),
    "timeout": (0.001, _DAY),
    "max_body": (1, 1 << 40),
    "max_buffered": (1, 1 << 50),
    "max_connections": (1, 1_000_000),
    "max_dimension": (1, 1 << 31),
    "min_dimension": (0, 1),
    "batch_delay": (0, 60),
    "versions": (1, 1000),
    "poll": (0, _DAY),
    "trial_timeout": (0, _DAY),
    "drain_delay": (0, _DAY),
    "drain_timeout": (0, _DAY),
}
_OPTIONAL = ("grpc_port", "threads", "concurrency", "max_buffered")

# Lower bound of the default, since a response may be larger than the largest request.
_LEAST_BUFFERED = 64 << 20


class SettingsError(ValueError):
    """An invalid option; the message names it and its valid values."""


@dataclass(frozen=True)
class ModelSource:
    """A model by name: an .onnx file, or a folder of versions (``1/model.onnx``, ``2/…``).

    ``configured`` tells that the folder is part of a model repository: its config.pbtxt counts.
    """

    name: str
    path: Path
    configured: bool = False

    def __post_init__(self) -> None:
        problem = why_no_model_name(self.name)
        if problem:
            raise SettingsError(
                f"'{self.name}' is not a valid model name: {problem}; give another as NAME=PATH"
            )

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """Parse PATH or NAME=PATH; the default name is that of the file or folder."""
        name, mark, path = text.partition("=")
        if not mark or "/" in name:
            path = text
            name = Path(text).stem if text.endswith((".onnx", ".ort")) else Path(text).name
        try:
            refuse_address(path)
        except RemotePathError as error:
            raise SettingsError(str(error)) from None
        return cls(name, Path(path).absolute())


@dataclass(frozen=True)
class ServeSettings:
    """All settings of a server.

    Attributes:
        models: The models to serve.
        model_repository: A folder of further models, each with its versions and perhaps a
            config.pbtxt; the models in it may change.
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free one.
        grpc_port: Port for gRPC; None serves HTTP only.
        workers: Number of processes.
        threads: Size of each session's intra-op thread pool. If ``threads`` or ``concurrency`` is
            None, it is chosen so that workers × concurrency × threads is the number of CPUs, or of
            whole CPUs that a CPU quota grants; by default with all threads for one request.
        concurrency: Most requests of a model that run at the same time in a process.
        queue: Most queued requests of a model.
        timeout: Seconds for each phase of a request: its head, its body, queue and session, and
            the client's reading of the response.
        max_body: Most bytes of a request.
        max_buffered: Most bytes of requests and responses that a process holds at a time.
        max_connections: Most connections of a process.
        max_dimension: Largest size of a dimension that a model leaves open.
        min_dimension: Smallest such size.
        max_batch: Most rows of a run; above 1, requests are batched dynamically.
        batch_delay: Most seconds that a request waits for others of its batch.
        versions: How many of the newest versions in a folder are served.
        poll: Seconds between checks of the files for changes; 0 leaves reloads to the API.
        trial_timeout: Seconds for a separate process to open a version and run it once before the
            server opens it; 0 omits the trial.
        drain_delay: Seconds after SIGTERM in which the server still serves but reports that it is
            not ready.
        drain_timeout: Seconds after that for pending requests to finish.
        token: Secret that every request must carry.
        access_log: Whether to log every request.
        log_format: "json" or "text".
        otel: Whether spans are sent to the collector that OpenTelemetry's variables name.
        custom_op_libraries: Paths of other libraries with operators of the models.

    """

    models: tuple[ModelSource, ...]
    model_repository: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
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
    otel: bool = False
    custom_op_libraries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.models and self.model_repository is None:
            raise SettingsError(
                "there is no model to serve: name one, or a folder of them (--model-repository)"
            )
        self._check_repository()
        for name in self.names:
            if self.names.count(name) > 1:
                raise SettingsError(f"two models are named '{name}': give one as NAME=PATH")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                check_range(f"--{name.replace('_', '-')}", value, low, high)
        check_range("--max-batch", self.max_batch, 1, self.max_dimension)
        if self.max_batch > 1 and self.batch_delay >= self.timeout:
            raise SettingsError(
                f"--batch-delay is {self.batch_delay:g}; it must be below --timeout "
                f"({self.timeout:g}), or requests time out while they wait for others"
            )
        if self.token is not None and (not self.token.isascii() or len(self.token) < 16):
            raise SettingsError(
                f"the token must have 16 or more ASCII characters: set {TOKEN_VARIABLE} to the "
                "output of openssl rand -hex 16"
            )
        try:
            libraries = library_paths(self.custom_op_libraries)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        object.__setattr__(self, "custom_op_libraries", libraries)
        if self.log_format not in ("json", "text"):
            raise SettingsError(f"--log-format is '{self.log_format}'; it may be json or text")

    def _check_repository(self) -> None:
        if self.model_repository is None:
            return
        try:
            refuse_address(self.model_repository)
        except RemotePathError as error:
            raise SettingsError(f"--model-repository: {error}") from None
        object.__setattr__(self, "model_repository", str(Path(self.model_repository).absolute()))

    @property
    def names(self) -> list[str]:
        """Names of the models that were given one by one."""
        return [model.name for model in self.models]

    @property
    def session_threads(self) -> int:
        """Threads of each session."""
        if self.threads is not None:
            return self.threads
        return max(1, default_threads() // self.workers // (self.concurrency or 1))

    @property
    def runs(self) -> int:
        """Most requests of a model that run at the same time in a process."""
        if self.concurrency is not None:
            return self.concurrency
        return max(1, default_threads() // self.workers // self.session_threads)

    @property
    def buffered(self) -> int:
        """Most bytes of requests and responses in a process, by default 8 of the largest."""
        if self.max_buffered is not None:
            return self.max_buffered
        return max(8 * self.max_body, _LEAST_BUFFERED)

    def to_json(self) -> str:
        """Serialize the settings for another process."""
        models = [[model.name, str(model.path)] for model in self.models]
        return json.dumps({**asdict(self), "models": models})

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        """Parse the output of ``to_json``."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ServeSettings:
        """Create settings from plain values; models are [NAME=]PATH or [name, path] pairs."""
        unknown = sorted(set(values) - {item.name for item in fields(cls)})
        if unknown:
            raise SettingsError(f"unknown setting: {', '.join(unknown)}")
        models = tuple(
            ModelSource.parse(item)
            if isinstance(item, str)
            else ModelSource(item[0], Path(item[1]))
            for item in values.get("models", ())
        )
        libraries = tuple(values.get("custom_op_libraries", ()))
        return cls(**{**values, "models": models, "custom_op_libraries": libraries})


def why_no_model_name(text: str) -> str:
    """Return why a model may not have this name; empty if it may."""
    if text == _STATISTICS:
        return f"/v2/models/{_STATISTICS} is the path of all models' statistics"
    if _NAME.fullmatch(text) is None:
        return "a name has up to 100 letters, digits, _, . and -, a letter or digit first"
    return ""


def check_range(option: str, value: float, low: float, high: float) -> None:
    """Raise SettingsError unless ``value`` is a number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{option} is {value!r}, not a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        raise SettingsError(f"{option} is too large; it may be {low:g} to {high:g}") from None
    if not finite:
        raise SettingsError(f"{option} is {value!r}, not a number")
    if not low <= value <= high:
        raise SettingsError(f"{option} is {value:g}; it may be {low:g} to {high:g}")
