"""Converts dataclasses to plain data for JSON, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

RAW = {"raw": True}
"""Metadata of fields that hold the figures of every round: omitted unless requested."""


def to_plain(value: Any, *, raw: bool = False) -> Any:
    """Convert dataclasses, mappings and sequences to dicts and lists, RAW fields on request."""
    if dataclasses.is_dataclass(value):
        kept = [one for one in dataclasses.fields(value) if raw or not one.metadata.get("raw")]
        return {one.name: to_plain(getattr(value, one.name), raw=raw) for one in kept}
    if isinstance(value, Mapping):
        return {key: to_plain(inner, raw=raw) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner, raw=raw) for inner in value]
    return value


def from_plain(kind: Any, data: Any) -> Any:
    """Rebuild a ``kind`` from the plain data that ``to_plain`` and JSON made of it.

    Supports dataclasses, tuples, dicts, optional values and JSON's own types; other values stay as
    they are, and so do those of type variables.

    Raises:
        KeyError: a field is missing and has no default.

    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        needed = [field.name for field in dataclasses.fields(kind) if not _has_default(field)]
        fields = {name: data[name] for name in needed} | {k: data[k] for k in data if k in hints}
        return kind(**{name: from_plain(hints[name], value) for name, value in fields.items()})
    if origin in (types.UnionType, typing.Union):
        (inner,) = (one for one in arguments if one is not types.NoneType)
        return None if data is None else from_plain(inner, data)
    if origin is tuple:
        kinds = [arguments[0]] * len(data) if arguments[-1] is ... else arguments
        return tuple(from_plain(one, value) for one, value in zip(kinds, data, strict=True))
    if origin is dict:
        return {key: from_plain(arguments[1], value) for key, value in data.items()}
    return data


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing
