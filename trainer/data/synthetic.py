"""Made-up images of any shape, for tests of speed: classes that a linear layer can tell apart."""

from math import prod
from pathlib import Path

import torch

from ..memory import require_memory
from ..seeds import derived_generator
from .augmentation import Augmentation
from .base import DataConfig, Dataset, Split
from .idx_files import DataError

_SHAPE, _CLASSES, _SAMPLES = (3, 32, 32), 10, 1024


def describe_synthetic(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """Shape and classes. Raises ValueError for sizes below 1."""
    shape = _SHAPE if config.shape is None else config.shape
    classes = _CLASSES if config.classes is None else config.classes
    samples = _SAMPLES if config.samples is None else config.samples
    if not shape or min(*shape, classes, samples) < 1:
        raise ValueError("shape, classes and samples must be at least 1")
    require_memory(4 * prod(shape) * (samples + samples // 4 + classes), "the samples")
    return tuple(shape), classes


def load_synthetic(config: DataConfig, folder: Path | None, augmentation: Augmentation) -> Dataset:
    """Draw the same samples every time; a quarter as many for the test split."""
    if folder is not None:
        raise DataError("the data set 'synthetic' is made up and takes no folder")
    shape, classes = describe_synthetic(config)
    count = config.samples or _SAMPLES
    centres = torch.randn(classes, prod(shape), generator=derived_generator("centres"))
    splits = []
    for name, samples in (("train", count), ("test", max(1, count // 4))):
        generator = derived_generator("synthetic", name)
        labels = torch.randint(classes, (samples,), generator=generator)
        noise = torch.randn(samples, prod(shape), generator=generator)
        splits.append(Split((0.5 * centres[labels] + noise).view(samples, *shape), labels))
    train = Split(splits[0].inputs, splits[0].labels, augmentation)
    return Dataset(train, splits[1], "made-up samples")
