"""Options of ``fanin serve`` from a TOML file, by their names on the command line."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..._base.local_paths import RemotePathError, refuse_address
from ..._base.names import near_matches
from .settings import TOKEN_VARIABLE, ServeSettings, SettingsError

_MAX_BYTES = 1 << 20
# Options that stand for several values have another name than their setting.
_REPEATED = {"models": "models", "custom_op_libraries": "custom-op-library"}
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a string"),
}


def read_config(path: Path) -> dict[str, Any]:
    """Read a file of options.

    Args:
        path: The file. Relative paths in it start at its folder.

    Returns:
        Values by the names of ServeSettings, as ``ServeSettings.from_dict`` takes them.

    Raises:
        SettingsError: If the file cannot be read, or has an unknown key or a value of another type.

    """
    kinds = {
        item.name: str(item.type).removesuffix(" | None")
        for item in fields(ServeSettings)
        if item.name != "token"
    }
    names = {_REPEATED.get(name, name.replace("_", "-")): name for name in kinds}
    values: dict[str, Any] = {}
    for key, value in _load(path).items():
        if key == "token":
            raise SettingsError(
                f"{path}: a token is not read from a file: set {TOKEN_VARIABLE} in the environment"
            )
        if key not in names:
            raise SettingsError(f"{path}: unknown option {key!r}.{near_matches(key, names)}")
        name = names[key]
        if name in _REPEATED:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise SettingsError(f"{path}: {key} is not a list of strings")
            _require_no_nul(path, key, value)
            located = _located_model if name == "models" else _located
            values[name] = [located(str(item), path.parent) for item in value]
            continue
        types, wanted = _TYPES[kinds[name]]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise SettingsError(f"{path}: {key} is {value!r}, not {wanted}")
        _require_no_nul(path, key, [value])
        values[name] = value
        if name == "model_repository":
            values[name] = _located(str(value), path.parent)
    return values


def _load(path: Path) -> dict[str, Any]:
    try:
        refuse_address(path)
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except RemotePathError as error:
        raise SettingsError(f"--config: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise SettingsError(f"{path}: it is larger than {_MAX_BYTES} bytes")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of UTF-8 or of TOML
        raise SettingsError(f"{path} is not TOML: {error}") from error


def _require_no_nul(path: Path, key: str, values: Sequence[Any]) -> None:
    if any(isinstance(value, str) and "\0" in value for value in values):
        raise SettingsError(f"{path}: {key} has a NUL character")


def _located_model(text: str, folder: Path) -> str:
    """Let the path in PATH or NAME=PATH start at ``folder`` if it is relative."""
    name, mark, path = text.partition("=")
    if not mark or "/" in name:
        name, mark, path = "", "", text
    return f"{name}{mark}{_located(path, folder)}"


def _located(path: str, folder: Path) -> str:
    if "://" in path:  # refused later, in the words of the file
        return path
    return os.path.join(folder.absolute(), path)
