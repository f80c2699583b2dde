"""Sweeps: TOML files that name a recipe and the values to vary.

``recipe`` is a name or path. ``[set]`` holds values by dotted key for all runs; ``[grid]`` lists of
values by dotted key, every combination of which is a run. ``[[variants]]`` have a ``label``, whole
tables that replace those of the recipe (such as ``method``; an empty table means its defaults), a
``grid`` of their own, and ``extend``, by which their training is longer (see ``recipe.extend``).
"""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .._base.names import near_matches
from .._base.texts import parse_toml, read_text, short
from .config_table import ConfigError, as_table
from .recipe import (
    TrainConfig,
    assign,
    config_from_tables,
    config_to_tables,
    extend,
    load_recipe,
    override,
)
from .shipped import find_file, shipped_names

_SHIPPED = Path(__file__).parent / "sweeps"
_KEYS = ("recipe", "set", "grid", "variants")


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        name: name of its folder.
        variant: label of its variant.
        values: grid values by dotted key.
        config: its whole configuration.

    """

    name: str
    variant: str
    values: dict[str, object]
    config: TrainConfig


def sweep_names() -> list[str]:
    """Return the names of the shipped sweeps."""
    return shipped_names(_SHIPPED)


def load_sweep(name_or_path: str | os.PathLike[str]) -> list[SweepRun]:
    """Read a sweep and list its runs in the order of the file.

    Args:
        name_or_path: path to a TOML file, or the name of a shipped sweep.

    Raises:
        ConfigError: it cannot be read, or has a wrong key or value.

    """
    path = find_file("sweep", name_or_path, _SHIPPED)
    try:
        tables = parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"sweep {path} cannot be read: {error}") from error
    try:
        return expand(tables, path.parent)
    except ConfigError as error:
        raise ConfigError(f"sweep {path}: {error}") from error


def expand(tables: Mapping[str, object], folder: Path = Path()) -> list[SweepRun]:
    """List the runs of a parsed sweep.

    Args:
        tables: parsed TOML.
        folder: folder that a path to a recipe is relative to.

    Raises:
        ConfigError: a key or value is wrong.

    """
    for key in tables:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}." + near_matches(key, _KEYS))
    named = tables.get("recipe")
    if not isinstance(named, str):
        raise ConfigError("key 'recipe' must name a recipe")
    base = load_recipe(folder / named if named.endswith(".toml") else named)
    base = override(base, as_table(tables.get("set", {}), "set"))
    variants = tables.get("variants", [{"label": "run"}])
    if not isinstance(variants, list):
        raise ConfigError(f"'variants' must be a list of tables, got {short(variants)}")
    runs: list[SweepRun] = []
    for variant in variants:
        grid = as_table(tables.get("grid", {}), "grid")
        runs += _variant_runs(base, as_table(variant, "variants"), grid)
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two runs have the name {name!r}; give variants different labels")
    return runs


def _variant_runs(
    base: TrainConfig, variant: Mapping[str, object], grid: Mapping[str, object]
) -> list[SweepRun]:
    label = variant.get("label")
    if not isinstance(label, str) or not label.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"a variant needs a label of letters, digits and dashes, got {label!r}")
    variant_grid = as_table(variant.get("grid", {}), "variants.grid")
    replaced = {
        key: value for key, value in variant.items() if key not in ("label", "grid", "extend")
    }
    axes: dict[str, list[object]] = {}
    for key, choices in {**variant_grid, **grid}.items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"grid.{key} must be a list of values, got {choices!r}")
        axes[key] = choices
    runs = []
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        try:
            config = extend(_configured(base, replaced, values), _factor(variant))
        except ConfigError as error:
            raise ConfigError(f"variant {label!r}: {error}") from error
        parts = (f"{key.split('.')[-1]}{value}" for key, value in values.items())
        name = re.sub(r"[^\w.+-]+", "_", "-".join([label, *parts]))  # names a folder
        runs.append(SweepRun(name, label, values, config))
    return runs


def _factor(variant: Mapping[str, object]) -> float:
    factor = variant.get("extend", 1)
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise ConfigError(f"extend must be a number such as 2, got {factor!r}")
    return factor


def _configured(
    base: TrainConfig, replaced: Mapping[str, object], values: Mapping[str, object]
) -> TrainConfig:
    tables = config_to_tables(base)
    for key, table in replaced.items():
        if key not in tables:
            raise ConfigError(f"unknown table {key!r}." + near_matches(key, tables))
        tables[key] = dict(as_table(table, f"variants.{key}"))
    assign(tables, values)
    return config_from_tables(tables)
