"""Recipes: TOML files that say everything about a training run.

The tables are the fields of ``TrainConfig``; [model], [optimizer], [lr_schedule] and [method]
pick a class by ``name`` and take that class's fields. Unknown keys are errors.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

import tomli_w

from .._base.texts import parse_toml, read_text
from .config_table import ConfigError, from_table, tagged_from_table, to_table
from .data import Augmentation, DataConfig, check_data_config
from .initialization import WeightStd
from .layer_choice import LayerOptions
from .methods import METHODS, SRSTE, Dense, SparseMethod
from .models import MODELS, Model
from .names import near_matches
from .optimization import (
    LR_SCHEDULES,
    OPTIMIZERS,
    SGD,
    Adam,
    AdamW,
    ConstantLR,
    CosineLR,
    RMSprop,
    StepLR,
)
from .schedule import ScheduleOptions


@dataclass(frozen=True)
class TrainingConfig:
    """[training]: length, batches, precision and bookkeeping.

    ``batch_size``: samples of an optimizer step, passed through the model in ``accumulate``
    parts. ``label_smoothing``, ``clip_norm`` (L2 norm of all gradients; 0: none).
    ``precision``: of the forward pass; "float16" scales the loss. ``compile``: torch.compile.
    ``ema_decay``: of an average of the weights, which is then evaluated and written; 0: none.
    ``checkpoint_every``: optimizer steps between checkpoints; 0: only at the end of each epoch.
    ``log_every``: optimizer steps between records of the loss. ``tensorboard``: also write them
    as TensorBoard events.
    """

    epochs: int
    batch_size: int = 128
    accumulate: int = 1
    drop_last: bool = False
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    label_smoothing: float = 0.0
    clip_norm: float = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    ema_decay: float = 0.0
    checkpoint_every: int = 0
    log_every: int = 20
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("accumulate", 1),
            ("seed", 0),
            ("clip_norm", 0),
            ("checkpoint_every", 0),
            ("log_every", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("label_smoothing", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate ({self.accumulate}) must divide batch_size ({self.batch_size})"
            )


@dataclass(frozen=True)
class SparsifierConfig:
    """[sparsifier]: the keys of ``LayerOptions`` and ``ScheduleOptions``, and ``weight_std``."""

    layers: LayerOptions = field(default_factory=LayerOptions)
    weight_std: WeightStd = "sqrt(2/k)"
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run."""

    data: DataConfig
    model: Model
    training: TrainingConfig
    optimizer: SGD | Adam | AdamW | RMSprop
    method: Dense | SparseMethod | SRSTE
    lr_schedule: ConstantLR | CosineLR | StepLR = field(default_factory=CosineLR)
    sparsifier: SparsifierConfig = field(default_factory=SparsifierConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        try:
            check_data_config(self.data, self.augmentation)
        except ValueError as error:
            raise ConfigError(f"in [data] and [augmentation]: {error}") from error
        if isinstance(self.method, Dense) and self.sparsifier != SparsifierConfig():
            raise ConfigError("method 'dense' has no use for [sparsifier]; remove that table")
        if not isinstance(self.method, Dense) and not self.method.updates:
            self._refuse_schedule()

    def _refuse_schedule(self) -> None:
        for name, default in dataclasses.asdict(ScheduleOptions()).items():
            if getattr(self.sparsifier.schedule, name) != default:
                raise ConfigError(
                    f"method {self.method.name!r} has no topology updates; remove sparsifier.{name}"
                )


_TAGGED = ("model", "optimizer", "lr_schedule", "method")


def recipe_names() -> list[str]:
    """Names of the recipes that come with fanin."""
    folder = resources.files(__package__) / "recipes"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load_recipe(name_or_path: str | os.PathLike[str]) -> TrainConfig:
    """Read a recipe: a path to a TOML file, or the name of one that comes with fanin.

    Raises ConfigError when it does not exist, is not TOML or holds a wrong key or value.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        try:
            text = read_text(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"recipe {path} cannot be read: {error}") from error
        return parse_config(text, str(path))
    if str(name_or_path) not in recipe_names():
        raise ConfigError(
            f"no recipe {str(name_or_path)!r}."
            + near_matches(str(name_or_path), recipe_names())
            + " A path to a recipe ends in .toml."
        )
    source = resources.files(__package__) / "recipes" / f"{name_or_path}.toml"
    return parse_config(source.read_text(encoding="utf-8"), str(name_or_path))


def parse_config(text: str, source: str) -> TrainConfig:
    """Parse a recipe's text; ``source`` is its name for messages. Raises ConfigError."""
    try:
        return config_from_tables(parse_toml(text))
    except ValueError as error:  # ConfigError included
        raise ConfigError(f"recipe {source}: {error}") from error


def config_from_tables(tables: Mapping[str, object]) -> TrainConfig:
    """Build a configuration from parsed TOML. Raises ConfigError."""
    known = [f.name for f in dataclasses.fields(TrainConfig)]
    for key in tables:
        if key not in known:
            raise ConfigError(f"unknown table {key!r}." + near_matches(key, known))

    def needed(name: str) -> object:
        if name not in tables:
            raise ConfigError(f"table [{name}] is missing")
        return tables[name]

    cosine = {"name": CosineLR.name}
    return TrainConfig(
        data=from_table(DataConfig, needed("data"), "data"),
        model=tagged_from_table(MODELS, needed("model"), "model"),
        training=from_table(TrainingConfig, needed("training"), "training"),
        optimizer=tagged_from_table(OPTIMIZERS, needed("optimizer"), "optimizer"),
        method=tagged_from_table(METHODS, needed("method"), "method"),
        lr_schedule=tagged_from_table(
            LR_SCHEDULES, tables.get("lr_schedule", cosine), "lr_schedule"
        ),
        sparsifier=from_table(SparsifierConfig, tables.get("sparsifier", {}), "sparsifier"),
        augmentation=from_table(Augmentation, tables.get("augmentation", {}), "augmentation"),
    )


def config_to_tables(config: TrainConfig) -> dict[str, dict[str, object]]:
    """Inverse of ``config_from_tables``, with every default written out."""
    tables = {}
    for f in dataclasses.fields(config):
        part = getattr(config, f.name)
        name = {"name": part.name} if f.name in _TAGGED else {}
        tables[f.name] = name | to_table(part)
    return tables


def config_to_toml(config: TrainConfig) -> str:
    """Write the configuration as TOML text."""
    return tomli_w.dumps(config_to_tables(config))


def override(config: TrainConfig, assignments: Mapping[str, object]) -> TrainConfig:
    """Copy with values replaced by dotted key, such as {"training.epochs": 5}.

    Raises ConfigError for an unknown key or a wrong value.
    """
    tables = config_to_tables(config)
    for key, value in assignments.items():
        table, dot, name = key.partition(".")
        if not dot or table not in tables:
            known = [f"{t}.{n}" for t, values in tables.items() for n in values]
            raise ConfigError(f"unknown key {key!r}." + near_matches(key, known))
        tables[table][name] = value
    return config_from_tables(tables)


def extend(config: TrainConfig, factor: float) -> TrainConfig:
    """Train ``factor`` times as long: epochs and the epochs of the learning-rate schedule.

    The paper's extended training (×2, ×5). Raises ConfigError when the epochs would be no whole
    number.
    """
    epochs = config.training.epochs * factor
    if not 0 < epochs < float("inf") or epochs != int(epochs):
        raise ConfigError(
            f"{config.training.epochs} epochs times {factor:g} is no whole number of epochs"
        )
    return dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, epochs=int(epochs)),
        lr_schedule=config.lr_schedule.stretched(factor),
    )


def adjusted(
    recipe: str | os.PathLike[str], assignments: Iterable[str] = (), factor: float | None = None
) -> TrainConfig:
    """Load a recipe, change values ("training.epochs=5", values as in TOML), then extend it.

    Raises ConfigError.
    """
    config, changes = load_recipe(recipe), {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        try:
            changes[key] = parse_toml(f"value = {value}")["value"]
        except ValueError as error:
            raise ConfigError(
                f'{assignment!r} is not KEY=VALUE with a TOML value such as 5 or "text"'
            ) from error
        if not equals:
            raise ConfigError(f"{assignment!r} is not KEY=VALUE")
    if changes:
        config = override(config, changes)
    return config if factor is None else extend(config, factor)
