"""Options of ``fanin serve`` from a TOML file, by their names on the command line."""

from __future__ import annotations

import os
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

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
            values[name] = [_located(str(item), path.parent) for item in value]
            continue
        types, wanted = _TYPES[kinds[name]]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise SettingsError(f"{path}: {key} is {value!r}, not {wanted}")
        values[name] = value
        if name == "model_repository":
            values[name] = _located(str(value), path.parent)
    return values


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise SettingsError(f"{path}: it is larger than {_MAX_BYTES} bytes")
    try:
        return tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # of UTF-8 or of TOML
        raise SettingsError(f"{path} is not TOML: {error}") from error


def _located(text: str, folder: Path) -> str:
    """Let a relative path, in PATH or NAME=PATH, start at ``folder``."""
    name, mark, path = text.partition("=")
    if not mark or "/" in name:
        name, mark, path = "", "", text
    if "://" in path:  # refused later, in the words of the file
        return text
    return f"{name}{mark}{os.path.join(folder.absolute(), path)}"
