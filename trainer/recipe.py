"""Recipes: TOML files that describe a whole training run.

The tables are the fields of ``TrainConfig``; [model], [optimizer], [lr_schedule] and [method]
select a class by ``name`` and take the fields of that class. Unknown keys are errors.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from .._base.names import near_matches
from .._base.texts import parse_toml, read_text
from .config_table import ConfigError, from_table, tagged_from_table, to_table
from .data import Augmentation, DataConfig, check_data_config
from .initialization import WeightStd
from .layer_choice import LayerOptions
from .methods import METHODS, SRSTE, Dense, SparseMethod, TopKAST
from .models import MODELS, Model
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
from .shipped import find_file, shipped_names


@dataclass(frozen=True)
class TrainingConfig:
    """[training]: length, batches, precision and bookkeeping.

    Attributes:
        epochs: number of epochs.
        batch_size: samples per optimizer step, over all processes.
        accumulate: number of parts into which a batch is split; their gradients are added up.
        drop_last: leave out the last batch of an epoch if it is smaller.
        seed: seed of weights, masks, augmentation and sample order.
        device: "auto" (CUDA if available), "cpu" or "cuda".
        label_smoothing: in [0, 1).
        clip_norm: maximal L2 norm of all gradients together; 0: no clipping.
        precision: type of the forward pass; "float16" scales the loss.
        compile: use torch.compile.
        channels_last: store images and convolution weights with channels last.
        tf32: let CUDA's float32 products use TF32.
        cudnn_benchmark: let cuDNN measure its algorithms for each new shape.
        validation: fraction of the training split that is held out and evaluated after each epoch.
        keep: which weights are written: those of the "last" epoch, or of the one with the "best"
            validation accuracy.
        initial_weights: run folder or its weights.safetensors, from which to start; "": none.
        quantization_aware: round weights and inputs of layers to 8 bits in forward passes, also in
            the evaluation, whose figures are then those of 8 bits.
        ema_decay: decay of an average of the weights, which is then evaluated and written; 0: none.
        checkpoint_every: optimizer steps between checkpoints; 0: only at the end of each epoch.
        log_every: optimizer steps between records of the loss.
        tensorboard: also write the records as TensorBoard events.
        wandb: also send the records to Weights & Biases.
        mlflow: also send the records to MLflow.

    Raises:
        ValueError: a value is out of range.

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
    channels_last: bool = False
    tf32: bool = False
    cudnn_benchmark: bool = False
    validation: float = 0.0
    keep: Literal["last", "best"] = "last"
    initial_weights: str = ""
    quantization_aware: bool = False
    ema_decay: float = 0.0
    checkpoint_every: int = 0
    log_every: int = 20
    tensorboard: bool = False
    wandb: bool = False
    mlflow: bool = False

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
        for name in ("label_smoothing", "ema_decay", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.quantization_aware and self.compile:
            raise ValueError(
                "quantization_aware replaces weights while layers run, which compile does not "
                "follow; remove one of them"
            )
        if self.keep == "best" and not self.validation:
            raise ValueError(
                'keep = "best" chooses by validation accuracy: hold out some training samples, '
                "such as validation = 0.1"
            )
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate ({self.accumulate}) must divide batch_size ({self.batch_size})"
            )


@dataclass(frozen=True)
class DistillationConfig:
    """[distillation]: learn from the outputs of another run too (arXiv 1503.02531, section 2).

    Attributes:
        teacher: run folder of the teacher; "": no distillation.
        weight: of the teacher's part of the loss, in (0, 1]; the labels have the rest.
        temperature: by which the logits of both are divided, above 0.

    Raises:
        ValueError: a value is out of range, or others are set without a teacher.

    """

    teacher: str = ""
    weight: float = 0.5
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight must be in (0, 1], got {self.weight}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")
        if not self.teacher and (self.weight, self.temperature) != (0.5, 2.0):
            raise ValueError("weight and temperature are unused without a teacher; name its run")


@dataclass(frozen=True)
class SparsifierConfig:
    """[sparsifier]: the options of ``Sparsifier`` that a recipe sets, all in one table."""

    layers: LayerOptions = field(default_factory=LayerOptions)
    weight_std: WeightStd = "sqrt(2/k)"
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)


@dataclass(frozen=True)
class TrainConfig:
    """Configuration of a whole training run; each field is a table of the recipe.

    Raises:
        ConfigError: tables do not fit each other.

    """

    data: DataConfig
    model: Model
    training: TrainingConfig
    optimizer: SGD | Adam | AdamW | RMSprop
    method: Dense | SparseMethod | SRSTE | TopKAST
    lr_schedule: ConstantLR | CosineLR | StepLR = field(default_factory=CosineLR)
    sparsifier: SparsifierConfig = field(default_factory=SparsifierConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)

    def __post_init__(self) -> None:
        try:
            check_data_config(self.data, self.augmentation)
        except ValueError as error:
            raise ConfigError(f"in [data] and [augmentation]: {error}") from error
        if isinstance(self.method, Dense) and self.sparsifier != SparsifierConfig():
            raise ConfigError("method 'dense' does not use [sparsifier]; remove that table")
        if not isinstance(self.method, Dense) and not self.method.updates:
            self._refuse_schedule()

    def _refuse_schedule(self) -> None:
        for name, default in dataclasses.asdict(ScheduleOptions()).items():
            if getattr(self.sparsifier.schedule, name) != default:
                raise ConfigError(
                    f"method {self.method.name!r} has no topology updates; remove sparsifier.{name}"
                )


_SHIPPED = Path(__file__).parent / "recipes"
# Tables that select a class by "name", and tables of one class.
_NAMED: dict[str, Mapping[str, type[Any]]] = {
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "method": METHODS,
}
_PLAIN: dict[str, type[Any]] = {
    "data": DataConfig,
    "training": TrainingConfig,
    "sparsifier": SparsifierConfig,
    "augmentation": Augmentation,
    "distillation": DistillationConfig,
}


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    return shipped_names(_SHIPPED)


def load_recipe(name_or_path: str | os.PathLike[str]) -> TrainConfig:
    """Read a recipe.

    Args:
        name_or_path: path to a TOML file, or the name of a shipped recipe.

    Raises:
        ConfigError: it does not exist, is not TOML, or has a wrong key or value.

    """
    path = find_file("recipe", name_or_path, _SHIPPED)
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {error}") from error
    return parse_config(text, str(name_or_path))


def parse_config(text: str, source: str) -> TrainConfig:
    """Parse the text of a recipe.

    Args:
        text: TOML.
        source: name of the recipe for messages.

    Raises:
        ConfigError: it is not TOML, or has a wrong key or value.

    """
    try:
        return config_from_tables(parse_toml(text))
    except ValueError as error:  # ConfigError included
        raise ConfigError(f"recipe {source}: {error}") from error


def config_from_tables(tables: Mapping[str, object]) -> TrainConfig:
    """Build a configuration from parsed TOML.

    Raises:
        ConfigError: a table is missing, or has a wrong key or value.

    """
    fields = {f.name: f for f in dataclasses.fields(TrainConfig)}
    for key in tables:
        if key not in fields:
            raise ConfigError(f"unknown table {key!r}." + near_matches(key, fields))
    parts: dict[str, Any] = {}
    for name, known in fields.items():
        if name not in tables:
            if known.default_factory is dataclasses.MISSING:
                raise ConfigError(f"table [{name}] is missing")
        elif name in _NAMED:
            parts[name] = tagged_from_table(_NAMED[name], tables[name], name)
        else:
            parts[name] = from_table(_PLAIN[name], tables[name], name)
    return TrainConfig(**parts)


def config_to_tables(config: TrainConfig) -> dict[str, dict[str, object]]:
    """Return the tables of a configuration, with every default written out."""
    tables = {}
    for f in dataclasses.fields(config):
        part = getattr(config, f.name)
        name = {"name": part.name} if f.name in _NAMED else {}
        tables[f.name] = name | to_table(part)
    return tables


def config_to_toml(config: TrainConfig) -> str:
    """Return a configuration as TOML text, with every default written out."""
    return tomli_w.dumps(config_to_tables(config))


def override(config: TrainConfig, assignments: Mapping[str, object]) -> TrainConfig:
    """Return a copy with some values replaced.

    Args:
        config: configuration.
        assignments: new values by dotted key, such as {"training.epochs": 5}.

    Raises:
        ConfigError: a key is unknown or a value is wrong.

    """
    tables = config_to_tables(config)
    assign(tables, assignments)
    return config_from_tables(tables)


def assign(tables: dict[str, dict[str, object]], assignments: Mapping[str, object]) -> None:
    """Set values of tables by dotted key.

    Raises:
        ConfigError: a key does not name a table.

    """
    for key, value in assignments.items():
        table, dot, name = key.partition(".")
        if not dot or table not in tables:
            known = [f"{t}.{n}" for t, values in tables.items() for n in values]
            raise ConfigError(f"unknown key {key!r}." + near_matches(key, known))
        tables[table][name] = value


def extend(config: TrainConfig, factor: float) -> TrainConfig:
    """Train ``factor`` times as long: stretch epochs and learning-rate schedule.

    The extended training (×2, ×5) of the paper (arXiv 2305.02299, section 4).

    Raises:
        ConfigError: the number of epochs would not be a positive whole number.

    """
    epochs = config.training.epochs * factor
    if not 0 < epochs < float("inf") or epochs != int(epochs):
        raise ConfigError(
            f"{config.training.epochs} epochs times {factor:g} is not a whole number of epochs"
        )
    return dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, epochs=int(epochs)),
        lr_schedule=config.lr_schedule.stretch(factor),
    )


def load_customized(
    recipe: str | os.PathLike[str], assignments: Iterable[str] = (), factor: float | None = None
) -> TrainConfig:
    """Load a recipe, replace values, and extend it.

    Args:
        recipe: name or path.
        assignments: new values such as "training.epochs=5", with values as in TOML.
        factor: extend the training by this factor; None: do not.

    Raises:
        ConfigError: the recipe, an assignment or the factor is wrong.

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
