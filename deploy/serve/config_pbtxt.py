"""Reads the config.pbtxt of a model in a model repository.

https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto

The format is Triton's rather than one of our own, so that one repository can be served by both. A
field is honored, or named in the log as ignored because answers do not depend on it, or refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._base.names import near_matches
from ..errors import SessionError
from .model_options import ALL_VERSIONS, CONFIG_FILE, DEFAULTS, ModelOptions
from .settings import ServeSettings, SettingsError
from .text_format import Message, TextFormatError, parse
from .versions import FileStamps, stamps

_MAX_BYTES = 1 << 18
_MOST = 1 << 63

_HONORED = (
    *("name", "platform", "backend", "max_batch_size", "input", "output", "version_policy"),
    *("instance_group", "dynamic_batching", "parameters", "default_model_filename"),
)
# Answers do not depend on these.
_IGNORED = (
    *("optimization", "model_warmup", "metric_tags", "cc_model_filenames", "response_cache"),
    *("runtime", "model_metrics", "model_operations"),
)
# Options of the server whose ranges bound a field.
_FIELDS = {
    "--batch-delay": "dynamic_batching.max_queue_delay_microseconds",
    "--concurrency": "instance_group.count",
    "--threads": "the parameter intra_op_thread_count",
    "--versions": "version_policy.latest.num_versions",
}
_REFUSED = (
    *("sequence_batching", "ensemble_scheduling", "model_transaction_policy"),
    *("model_repository_agents", "batch_input", "batch_output"),
)


class OptionsFile:
    """A model's configuration on disk; without a folder, there is none.

    Attributes:
        path: The file, which may be absent.

    """

    def __init__(self, folder: Path | None, settings: ServeSettings):
        self.path = None if folder is None else folder / CONFIG_FILE
        self._folder = folder
        self._settings = settings
        self._options = DEFAULTS
        self._stamp: FileStamps | None = None  # of the file that was read
        self._seen: FileStamps | None = None  # at the last look

    def read(self, settled_only: bool) -> ModelOptions:
        """Return the options; while the file is perhaps being written, the earlier ones.

        Raises:
            SessionError: As ``read_options`` does.

        """
        if self._folder is None or self.path is None:
            return DEFAULTS
        stamp, before = stamps([self.path]), self._seen
        self._seen = stamp
        if stamp != self._stamp and (not settled_only or stamp == before):
            self._options = read_options(self._folder, self._settings)
            self._stamp = stamp
        return self._options


def read_options(folder: Path, settings: ServeSettings) -> ModelOptions:
    """Read the configuration in a model's folder, if there is one.

    Args:
        folder: The model's folder; its name is the model's.
        settings: The server's, for the ranges of values.

    Returns:
        The options; the defaults without a file.

    Raises:
        SessionError: If the file cannot be read, or asks for what the server does not do.

    """
    path = folder / CONFIG_FILE
    if not os.path.lexists(path):
        return DEFAULTS
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise SessionError(
                f"its {CONFIG_FILE} is not a regular file", "Replace or remove it.", model=path
            )
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SessionError(
            f"its {CONFIG_FILE} cannot be read: {error.strerror or error}",
            "Replace it, or give this user read permission.",
            model=path,
        ) from error
    try:
        if len(raw) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        options = _options(parse(raw.decode("utf-8-sig")), folder.name)
        options.applied_to(settings)  # checks the ranges
    except (TextFormatError, SettingsError, ValueError) as error:
        problem = str(error)
        for option, field in _FIELDS.items():
            problem = problem.replace(f"{option} is", f"{field} (as {option}) is")
        raise SessionError(
            f"its {CONFIG_FILE} is not usable: {problem}", "Correct or remove it.", model=path
        ) from error
    return options


def _options(config: Message, name: str) -> ModelOptions:
    _require_known("", config, _HONORED, _IGNORED, _REFUSED)
    _require_value(config, "name", ("", name))
    _require_value(config, "platform", ("", "onnxruntime_onnx"))
    _require_value(config, "backend", ("", "onnxruntime"))
    _require_value(config, "default_model_filename", ("", "model.onnx"))
    rows = _whole(config, "max_batch_size", 0)
    batching = _message(config, "dynamic_batching")
    if batching is not None and not rows:
        raise ValueError("dynamic_batching needs a max_batch_size of 1 or more")
    versions, chosen = _versions(config)
    concurrency = _instances(config)
    threads, ignored = _parameters(config)
    ignored = [*(name for name in config if name in _IGNORED), *ignored]
    delay = None
    if batching is not None:
        known = ("max_queue_delay_microseconds", "preferred_batch_size", "preserve_ordering")
        _require_known("dynamic_batching.", batching, known)
        delay = _whole(batching, "max_queue_delay_microseconds", 0) / 1e6
        ignored += [f"dynamic_batching.{name}" for name in batching if name in known[1:]]
    return ModelOptions(
        max_rows=rows or None,
        batching=batching is not None,
        batch_delay=delay,
        concurrency=concurrency,
        threads=threads,
        versions=versions,
        chosen=chosen,
        tensors=(*_tensors(config, "input"), *_tensors(config, "output")),
        ignored=tuple(ignored),
    )


def _versions(config: Message) -> tuple[int | None, frozenset[str]]:
    policy = _message(config, "version_policy")
    if not policy:
        return None, frozenset()
    _require_known("version_policy.", policy, ("latest", "all", "specific"))
    if len(policy) > 1:
        raise ValueError(f"version_policy has {' and '.join(policy)}; it may have one of them")
    if (specific := _message(policy, "specific")) is not None:
        _require_known("version_policy.specific.", specific, ("versions",))
        numbers = specific.get("versions", [])
        if not numbers or not all(type(number) is int and number > 0 for number in numbers):
            raise ValueError("version_policy.specific.versions is no list of numbers from 1")
        return len(set(numbers)), frozenset(map(str, numbers))
    if (latest := _message(policy, "latest")) is not None:
        _require_known("version_policy.latest.", latest, ("num_versions",))
        return _whole(latest, "num_versions", 1), frozenset()
    return ALL_VERSIONS, frozenset()


def _instances(config: Message) -> int | None:
    groups = config.get("instance_group")
    if groups is None:
        return None
    total = 0
    for group in groups:
        if not isinstance(group, dict):
            raise ValueError("instance_group is no message: { count: 1 kind: KIND_CPU }")
        _require_known("instance_group.", group, ("name", "count", "kind"))
        kind = _single(group, "kind", "KIND_CPU")
        if kind not in ("KIND_CPU", "KIND_AUTO"):
            raise ValueError(f"instance_group.kind is {kind}; this server has KIND_CPU only")
        total += _whole(group, "count", 1)
    return total


def _parameters(config: Message) -> tuple[int | None, list[str]]:
    """Return the threads that the parameters set, and the names of other parameters."""
    threads, ignored = None, []
    for entry in config.get("parameters", ()):
        key = _single(entry, "key", "") if isinstance(entry, dict) else ""
        value = _message(entry, "value") if isinstance(entry, dict) else None
        if key != "intra_op_thread_count":
            ignored.append(f"parameters.{key}")
            continue
        text = str(_single(value or {}, "string_value", ""))
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ValueError(f"the parameter intra_op_thread_count is {text[:40]!r}, not a number")
        threads = int(text) or None  # 0 is Triton's word for the default
    return threads, ignored


def _tensors(config: Message, kind: str) -> list[tuple[str, str, str, tuple[int, ...] | None]]:
    found = []
    for entry in config.get(kind, ()):
        if not isinstance(entry, dict):
            raise ValueError(f"{kind} is no message: {{ name: … data_type: … dims: … }}")
        known = ("name", "data_type", "dims", "reshape", "format", "optional", "label_filename")
        _require_known(f"{kind}.", entry, known)
        if _single(entry, "label_filename", "") or _single(entry, "optional", "false") == "true":
            raise ValueError(f"{kind}.label_filename and {kind}.optional are not supported")
        dims = entry.get("dims")
        if dims is not None and not all(type(size) is int for size in dims):
            raise ValueError(f"{kind}.dims is no list of numbers")
        reshaped = "reshape" in entry or dims is None
        name, datatype = _single(entry, "name", ""), _single(entry, "data_type", "")
        found.append((kind, str(name), str(datatype), None if reshaped else tuple(dims or ())))
    return found


def _require_known(
    where: str,
    message: Mapping[str, Any],
    known: tuple[str, ...],
    ignored: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
) -> None:
    for name in message:
        if name in refused:
            raise ValueError(f"{where}{name} is not supported")
        if name not in known and name not in ignored:
            raise ValueError(f"it has an unknown field, {where}{name}.{near_matches(name, known)}")


def _require_value(config: Message, name: str, allowed: tuple[str, ...]) -> None:
    value = _single(config, name, "")
    if value not in allowed:
        raise ValueError(f"{name} is {str(value)[:60]!r}; here it is {allowed[-1]!r}")


def _single(message: Message, name: str, default: str) -> Any:
    values = message.get(name, [default])
    if len(values) != 1 or isinstance(values[0], dict):
        raise ValueError(f"{name} is not a single value")
    return values[0]


def _message(message: Message, name: str) -> Message | None:
    values = message.get(name)
    if values is None:
        return None
    if len(values) != 1 or not isinstance(values[0], dict):
        raise ValueError(f"{name} is not a single message: {name} {{ … }}")
    return values[0]


def _whole(message: Message, name: str, default: int) -> int:
    values = message.get(name, [default])
    if len(values) != 1 or type(values[0]) is not int or not 0 <= values[0] < _MOST:
        raise ValueError(f"{name} is not a whole number below 2**63")
    return values[0]
