"""Dataclasses from the plain data that results.json holds of them."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def from_plain(kind: type[T], data: Any) -> T:
    """Make a ``kind`` of what ``dataclasses.asdict`` and JSON made of one.

    Knows dataclasses, tuples, dicts, optional values and what JSON has itself. Raises KeyError for
    a field that is missing and has no default.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
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
