"""Strict conversion between TOML tables and frozen dataclasses."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence

from .._base.names import near_matches
from .._base.texts import short

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = typing.TypeVar("T", bound="DataclassInstance")


class ConfigError(ValueError):
    """A configuration is wrong; the message names the key and what it should be."""


def from_table(cls: type[T], table: object, where: str) -> T:
    """Build a dataclass from a TOML table, checking every key and type.

    Args:
        cls: the class. A field that is a dataclass itself takes its keys from the same table; one
            without a default must be present.
        table: the parsed table.
        where: the table's name for messages.

    Raises:
        ConfigError: it is not a table, a key is unknown or missing, or a value is wrong.

    """
    table = as_table(table, where)
    known = table_keys(cls)
    for key in table:
        if key not in known:
            raise ConfigError(f"unknown key {_path(where, key)!r}." + near_matches(key, known))
    hints = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        name, hint = field.name, hints[field.name]
        if _is_dataclass_type(hint):
            keys = table_keys(hint)
            part = {key: value for key, value in table.items() if key in keys}
            values[name] = from_table(hint, part, where)
        elif name in table:
            values[name] = _convert(hint, table[name], _path(where, name))
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"key {_path(where, name)!r} is missing")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"in [{where}]: {error}" if where else str(error)) from error


def as_table(value: object, where: str) -> Mapping[str, object]:
    """Return ``value``, the table named ``where``; raise ConfigError if it is not a table."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"[{where}] must be a table, got {short(value)}")
    return value


def table_keys(cls: "type[DataclassInstance]") -> list[str]:
    """List the keys of a dataclass's table, those of fields that are dataclasses included."""
    hints = typing.get_type_hints(cls)
    keys: list[str] = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        keys += table_keys(hint) if _is_dataclass_type(hint) else [field.name]
    return keys


def tagged_from_table(classes: Mapping[str, type[T]], table: object, where: str) -> T:
    """Build the class that the table's ``name`` selects.

    Args:
        classes: the classes by name.
        table: the parsed table.
        where: the table's name for messages.

    Raises:
        ConfigError: the name is missing or unknown, or as for ``from_table``.

    """
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ConfigError(f"[{where}] must be a table with a 'name', one of {sorted(classes)}")
    name = table["name"]
    if name not in classes:
        raise ConfigError(f"unknown {where} {short(name)}." + near_matches(name, classes))
    rest = {key: value for key, value in table.items() if key != "name"}
    return from_table(classes[name], rest, where)


def to_table(config: "DataclassInstance") -> dict[str, object]:
    """Write a dataclass as a TOML table; fields that are None are left out."""
    table: dict[str, object] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            table |= to_table(value)
        elif value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def _is_dataclass_type(hint: object) -> "typing.TypeGuard[type[DataclassInstance]]":
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


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
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where!r} must be a list, got {short(value)}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping):
        table = as_table(value, where)
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in table.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where!r} is {short(value)}, which is too large") from None
    if hint is not object and type(value) is not hint:
        raise ConfigError(
            f"{where!r} must be {getattr(hint, '__name__', hint)}, got {type(value).__name__} "
            f"{short(value)}"
        )
    if hint is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where!r} is {short(value)}, which does not fit into 64 bits")
    return value
