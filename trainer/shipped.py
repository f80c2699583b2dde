"""Recipes and sweeps by the name of a shipped file, or by path."""

import os
from pathlib import Path

from .._base.local_paths import refuse_address
from .._base.names import near_matches
from .config_table import ConfigError


def shipped_names(folder: Path) -> list[str]:
    """Return the names of the TOML files in ``folder``, without their suffix."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def find_file(kind: str, name_or_path: str | os.PathLike[str], folder: Path) -> Path:
    """Return the path of a TOML file.

    Args:
        kind: "recipe" or "sweep", for messages.
        name_or_path: a path, or the name of a file in ``folder``.
        folder: folder of the shipped files.

    Raises:
        ConfigError: it is neither a path that ends in .toml, nor an existing file, nor a name.
        RemotePathError: it is an address.

    """
    refuse_address(name_or_path)
    path, name = Path(name_or_path), str(name_or_path)
    if path.suffix == ".toml" or os.path.isfile(path):
        return path
    names = shipped_names(folder)
    if name not in names:
        raise ConfigError(
            f"no {kind} {name!r}.{near_matches(name, names)} The path of a {kind} ends in .toml."
        )
    return folder / f"{name}.toml"
