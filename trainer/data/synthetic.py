"""Synthetic images of any shape, for speed tests: classes that a linear layer can separate."""

from math import prod
from pathlib import Path

import torch

from ..memory import require_memory
from ..seeds import derived_generator
from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset, Split

_SHAPE, _CLASSES, _SAMPLES = (3, 32, 32), 10, 1024


def describe_synthetic(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """Return shape and number of classes.

    Raises:
        ValueError: a size is out of range.

    """
    shape = _SHAPE if config.shape is None else config.shape
    classes = _CLASSES if config.classes is None else config.classes
    samples = _SAMPLES if config.samples is None else config.samples
    if not shape or min(*shape, classes, samples) < 1:
        raise ValueError("shape, classes and samples must be at least 1")
    require_memory(4 * prod(shape) * (samples + samples // 4 + classes), "the samples")
    return tuple(shape), classes


def load_synthetic(config: DataConfig, folder: Path | None, augmentation: Augmentation) -> Dataset:
    """Draw the same samples every time; the test split has a quarter as many.

    Raises:
        DataError: a folder was given.

    """
    if folder is not None:
        raise DataError("the data set 'synthetic' is generated and takes no folder")
    shape, classes = describe_synthetic(config)
    count = config.samples or _SAMPLES
    # This spelling is part of the seed.
    centers = torch.randn(classes, prod(shape), generator=derived_generator("centres"))
    splits = []
    for name, samples in (("train", count), ("test", max(1, count // 4))):
        generator = derived_generator("synthetic", name)
        labels = torch.randint(classes, (samples,), generator=generator)
        noise = torch.randn(samples, prod(shape), generator=generator)
        splits.append(Split((0.5 * centers[labels] + noise).view(samples, *shape), labels))
    train = Split(splits[0].inputs, splits[0].labels, augmentation)
    return Dataset(train, splits[1], "synthetic samples")
