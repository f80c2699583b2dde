"""Strict conversion between TOML tables and frozen dataclasses."""

import dataclasses
import types
import typing
from collections.abc import Mapping

from .._base.names import near_matches
from .._base.texts import short

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = typing.TypeVar("T", bound="DataclassInstance")


class ConfigError(ValueError):
    """A configuration is wrong; the message names the key and what it should be."""


def from_table(cls: type[T], table: object, where: str) -> T:
    """Build ``cls`` from a TOML table, checking every key and type.

    ``where`` is the table's name for messages. Fields that are dataclasses take tables; a field
    without a default must be present. Raises ConfigError.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"[{where}] must be a table, got {short(table)}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in table:
        if key not in fields:
            raise ConfigError(f"unknown key {_path(where, key)!r}." + near_matches(key, fields))
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], _path(where, name))
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"key {_path(where, name)!r} is missing")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"in [{where}]: {error}" if where else str(error)) from error


def tagged_from_table(classes: Mapping[str, type[T]], table: object, where: str) -> T:
    """Build the class that the table's ``name`` key picks from ``classes``."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ConfigError(f"[{where}] must be a table with a 'name', one of {sorted(classes)}")
    name = table["name"]
    if name not in classes:
        raise ConfigError(f"unknown {where} {short(name)}." + near_matches(name, classes))
    rest = {key: value for key, value in table.items() if key != "name"}
    return from_table(classes[name], rest, where)


def to_table(config: "DataclassInstance") -> dict[str, object]:
    """Dataclass to a TOML table; fields that are None are left out."""
    return {
        field.name: _plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if getattr(config, field.name) is not None
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _convert(hint: object, value: object, where: str) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        options = [a for a in arguments if a is not type(None)]
        return _convert(options[0], value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(f"{where!r} must be one of {list(arguments)}, got {short(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where!r} must be a list, got {short(value)}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where!r} must be a table, got {short(value)}")
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where!r} is {short(value)}, too large a number") from None
    if hint is not object and type(value) is not hint:
        raise ConfigError(
            f"{where!r} must be {getattr(hint, '__name__', hint)}, got {type(value).__name__} "
            f"{short(value)}"
        )
    if hint is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where!r} is {short(value)}, more than 64 bits hold")
    return value
