"""Data sets of recipes."""

import os
from dataclasses import fields
from pathlib import Path

from ..._base.names import near_matches
from ..._base.texts import short
from .augmentation import Augmentation, mix_batch
from .base import (
    DataConfig,
    DataError,
    Dataset,
    DatasetInfo,
    DataSplit,
    Split,
    epoch_order,
    fixed_shape,
)
from .cifar import load_cifar10
from .digits import load_digits_dataset
from .image_folder import describe_imagenet, load_imagenet
from .mnist import describe_mnist, fashion_mnist_folder, load_fashion_mnist, load_mnist
from .part import held_out
from .shards import describe_webdataset, load_webdataset
from .synthetic import describe_synthetic, load_synthetic

DATASETS: dict[str, DatasetInfo] = {
    "cifar10": DatasetInfo(fixed_shape((3, 32, 32), 10), load_cifar10),
    "digits": DatasetInfo(fixed_shape((1, 8, 8), 10), load_digits_dataset),
    "fashion-mnist": DatasetInfo(describe_mnist, load_fashion_mnist, ("shape", "samples")),
    "imagenet": DatasetInfo(
        describe_imagenet, load_imagenet, ("classes", "image_size", "workers"), in_memory=False
    ),
    "mnist": DatasetInfo(describe_mnist, load_mnist, ("shape", "samples")),
    "synthetic": DatasetInfo(describe_synthetic, load_synthetic, ("shape", "classes", "samples")),
    "webdataset": DatasetInfo(
        describe_webdataset,
        load_webdataset,
        ("classes", "image_size", "workers", "train_shards", "test_shards", "shuffle_buffer"),
        in_memory=False,
    ),
}


def check_data_config(config: DataConfig, augmentation: Augmentation) -> None:
    """Validate [data] and [augmentation].

    Raises:
        ValueError: the data set is unknown, or does not have an option.

    """
    if config.name not in DATASETS:
        known = near_matches(config.name, DATASETS)
        raise ValueError(f"unknown data set {short(config.name)}.{known}")
    info = DATASETS[config.name]
    for option in (field.name for field in fields(config) if field.name != "name"):
        if getattr(config, option) is not None and option not in info.options:
            raise ValueError(f"the data set {config.name!r} has no option {option}; remove it")
    info.describe(config)
    augmentation.check(info.in_memory)


def load_dataset(
    config: DataConfig | str,
    folder: str | os.PathLike[str] | None = None,
    augmentation: Augmentation | None = None,
) -> Dataset:
    """Load a data set.

    Args:
        config: its name or configuration.
        folder: folder of its files, for data sets that have files.
        augmentation: how training images are changed; None: not at all.

    Raises:
        DataError: the data set is unknown, or its files are missing or damaged; says how to get
            them.

    """
    config = DataConfig(config) if isinstance(config, str) else config
    augmentation = augmentation or Augmentation()
    try:
        check_data_config(config, augmentation)
    except ValueError as error:
        raise DataError(str(error)) from error
    path = None if folder is None else Path(folder)
    return DATASETS[config.name].load(config, path, augmentation)


def describe(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """Return input shape and number of classes of a data set, without loading it."""
    return DATASETS[config.name].describe(config)


__all__ = [
    "DATASETS",
    "Augmentation",
    "DataConfig",
    "DataError",
    "DataSplit",
    "Dataset",
    "Split",
    "check_data_config",
    "describe",
    "epoch_order",
    "fashion_mnist_folder",
    "held_out",
    "load_dataset",
    "mix_batch",
]
