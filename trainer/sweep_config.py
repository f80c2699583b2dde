"""Sweeps: TOML files that name a recipe and the values that its runs differ in.

``recipe``: name or path. ``[set]``: values by dotted key, for all runs. ``[grid]``: lists of values
by dotted key; every combination is a run. ``[[variants]]``: ``label``, whole tables that replace
the recipe's (such as ``method``; an empty table means its defaults), and a ``grid`` of their own.
"""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .._base.names import near_matches
from .._base.texts import parse_toml, read_text, short
from .config_table import ConfigError
from .recipe import TrainConfig, config_from_tables, config_to_tables, load_recipe, override

_SHIPPED = Path(__file__).parent / "sweeps"
_KEYS = ("recipe", "set", "grid", "variants")


@dataclass(frozen=True)
class SweepRun:
    """One run: folder name, variant, values of the grid by dotted key, whole configuration."""

    name: str
    variant: str
    values: dict[str, object]
    config: TrainConfig


def sweep_names() -> list[str]:
    """Names of the sweeps that come with fanin."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load_sweep(name_or_path: str | os.PathLike[str]) -> list[SweepRun]:
    """Read a sweep file, or a shipped one by name, and spell out its runs in the file's order.

    Raises ConfigError for a file that cannot be read and for wrong keys and values.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.is_file():
        if str(name_or_path) not in sweep_names():
            raise ConfigError(
                f"no sweep {str(name_or_path)!r}."
                + near_matches(str(name_or_path), sweep_names())
                + " A path to a sweep ends in .toml."
            )
        path = _SHIPPED / f"{name_or_path}.toml"
    try:
        tables = parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"sweep {path} cannot be read: {error}") from error
    try:
        return expand(tables, path.parent)
    except ConfigError as error:
        raise ConfigError(f"sweep {path}: {error}") from error


def expand(tables: Mapping[str, object], folder: Path = Path()) -> list[SweepRun]:
    """Spell out the runs of a parsed sweep; ``folder``: where a recipe's path starts."""
    for key in tables:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}." + near_matches(key, _KEYS))
    named = tables.get("recipe")
    if not isinstance(named, str):
        raise ConfigError("key 'recipe' must name a recipe")
    base = load_recipe(folder / named if named.endswith(".toml") else named)
    base = override(base, _table(tables.get("set", {}), "set"))
    variants = tables.get("variants", [{"label": "run"}])
    if not isinstance(variants, list):
        raise ConfigError(f"'variants' must be a list of tables, got {short(variants)}")
    runs: list[SweepRun] = []
    for variant in variants:
        grid = _table(tables.get("grid", {}), "grid")
        runs += _variant_runs(base, _table(variant, "variants"), grid)
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two runs would be {name!r}; give variants labels of their own")
    return runs


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"[{where}] must be a table, got {short(value)}")
    return value


def _variant_runs(
    base: TrainConfig, variant: Mapping[str, object], grid: Mapping[str, object]
) -> list[SweepRun]:
    label = variant.get("label")
    if not isinstance(label, str) or not label.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"a variant needs a label of letters, digits and dashes, got {label!r}")
    own = _table(variant.get("grid", {}), "variants.grid")
    replaced = {key: value for key, value in variant.items() if key not in ("label", "grid")}
    axes: dict[str, list[object]] = {}
    for key, listed in {**own, **grid}.items():
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"grid.{key} must be a list of values, got {listed!r}")
        axes[key] = listed
    runs = []
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        try:
            config = _configured(base, replaced, values)
        except ConfigError as error:
            raise ConfigError(f"variant {label!r}: {error}") from error
        parts = (f"{key.split('.')[-1]}{value}" for key, value in values.items())
        name = re.sub(r"[^\w.+-]+", "_", "-".join([label, *parts]))  # it names a folder
        runs.append(SweepRun(name, label, values, config))
    return runs


def _configured(
    base: TrainConfig, replaced: Mapping[str, object], values: Mapping[str, object]
) -> TrainConfig:
    tables = config_to_tables(base)
    for key, table in replaced.items():
        if key not in tables:
            raise ConfigError(f"unknown table {key!r}." + near_matches(key, tables))
        tables[key] = dict(_table(table, f"variants.{key}"))
    for key, value in values.items():
        table, _, name = key.partition(".")
        if table not in tables or not name:
            raise ConfigError(f"unknown key {key!r}; write TABLE.KEY")
        tables[table] = {**tables[table], name: value}
    return config_from_tables(tables)
